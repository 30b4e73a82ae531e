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

/// Returns `path`, with `?` and the query if the query is not empty.
fn with_query(path: &str, mut query: Serializer<'_, String>) -> String {
    match query.finish().as_str() {
        "" => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}
