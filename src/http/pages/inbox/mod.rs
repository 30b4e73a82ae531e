//! The inbox in a browser: the requests that wait for a person (`list`), the decided requests
//! (`decided`), and the link from an answered request to the next question (`next_question`). The
//! lists have no form that decides a request.

pub(crate) mod decided;
pub(crate) mod home;
pub(crate) mod list;
pub(crate) mod next_question;
pub(crate) mod rows;
pub(crate) mod script;
#[cfg(test)]
mod tests;

use url::form_urlencoded::Serializer;

use crate::http::events::inbox::filter::InboxFilter;
use crate::http::server::query::cursor_of;
use crate::task::id::RequestId;

/// Returns the address of a page of a list. The query has the filter, `all=1` if `all` is set, and
/// the cursor of the request after which the page begins, if any.
fn list_address(path: &str, filter: &InboxFilter, all: bool, after: Option<RequestId>) -> String {
    let mut query = Serializer::new(String::new());
    filter.append_to(&mut query);
    if all {
        query.append_pair("all", "1");
    }
    if let Some(after) = after {
        query.append_pair("cursor", &cursor_of(after.0));
    }
    match query.finish().as_str() {
        "" => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}
