//! The hidden field in which a form names the user of its page. All tabs of a browser share the
//! session's cookie, so a page may stay open while another user signs in. Without the field, the
//! forms of that page would act for the new user. A form without the field acts for its sender.

use maud::{Markup, html};

use crate::engine::DetailCode;
use crate::http::Http;
use crate::http::server::body::PostRequest;
use crate::http::server::problem::Problem;
use crate::people::Caller;
use crate::task::user::UserId;

pub(super) const FIELD: &str = "shown_to";

/// Renders the field for a form on a page of `caller`.
pub(super) fn field(caller: &Caller) -> Markup {
    html! { input type="hidden" name=(FIELD) value=(caller.user_id.as_str()); }
}

/// Checks that the form in `bytes`, which `user` posts, is not from a page of another user.
///
/// # Errors
/// `forbidden` if the form names another user.
pub(super) fn check(bytes: &[u8], user: &UserId) -> Result<(), Problem> {
    let mut fields = url::form_urlencoded::parse(bytes);
    if fields.any(|(name, value)| name == FIELD && !user.is_same_person(&value)) {
        return Err(Problem::forbidden(DetailCode::ShownToAnother));
    }
    Ok(())
}

/// Like [`check`], for an operation that reads nothing else from the body. A body that is no form
/// passes.
pub(super) async fn check_post(http: &Http, posted: &PostRequest) -> Result<(), Problem> {
    if !posted.is_form() {
        return Ok(());
    }
    let user = posted.caller.user_id.clone();
    posted
        .parse_bytes(&http.body_parser, move |bytes| check(bytes, &user))
        .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::sample;
    use crate::http::server::problem::Code;

    #[test]
    fn form_passes_only_for_the_user_of_its_page_in_any_spelling() {
        let user = sample::caller().user_id;
        for form in ["", "a=b", "shown_to=alice", "a=b&shown_to=ALICE"] {
            assert!(check(form.as_bytes(), &user).is_ok(), "{form}");
        }
        for form in ["shown_to=bob", "shown_to=", "shown_to=alice&shown_to=bob"] {
            let refused = check(form.as_bytes(), &user).unwrap_err();
            assert_eq!(refused.code, Code::Forbidden, "{form}");
        }
    }
}
