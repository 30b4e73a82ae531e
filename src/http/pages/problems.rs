//! `/problems/{code}`: a page with the meaning and the remedy of a problem. Every problem code has
//! a page.

use maud::{Markup, PreEscaped};
use pulldown_cmark::{Options, Parser, html::push_html};

use super::language::Language;
use super::layout::{HtmlPage, titled_page};
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::Code;

pub(crate) const OP: Op = Op::public("get_problem_page", &[Code::NotFound]);

/// Explain a problem
///
/// Returns the page whose address is the `type` of a problem.
#[utoipa::path(
    get, path = "/problems/{code}", operation_id = "get_problem_page", tag = "service", security(()),
    params(("code" = Code, Path, description = "The problem's code")),
    responses(HtmlPage)
)]
pub(crate) async fn get_problem_page(PathId(code): PathId<Code>) -> Markup {
    page(code)
}

fn page(code: Code) -> Markup {
    let mut body = String::new();
    push_html(
        &mut body,
        Parser::new_ext(code.page_text(), Options::ENABLE_TABLES),
    );
    titled_page(code.title(), Language::English, &PreEscaped(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_page_with_its_remedy() {
        for code in Code::ALL {
            let text = code.page_text();
            assert!(
                text.contains(&format!("`{}`", code.as_str())),
                "{code:?} names itself"
            );
            assert!(
                text.contains(&format!("status {}", code.status().as_u16())),
                "{code:?} names its status"
            );
            assert!(
                text.contains("## Why") && text.contains("## What to do"),
                "{code:?}"
            );
            assert!(page(*code).into_string().contains("<h2>Why</h2>"));
        }
    }
}
