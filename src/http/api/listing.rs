//! The response of a list operation. Entries are serialized one by one until the page is full, so a
//! page of large entries uses a bounded amount of memory.

use std::fmt::Write as _;

use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use serde::Serialize;
use serde_json::Value;

use crate::http::server::problem::Problem;

/// The maximum size of a page in bytes. A larger entry gets a page of its own.
const MAX_PAGE_BYTES: usize = 4 * 1024 * 1024;
/// The number of bytes that a page keeps free for the members that follow the entries.
const RESERVED_END_BYTES: usize = 256;

#[derive(Debug)]
pub(crate) struct Listing {
    text: String,
    start: usize,
}

impl Listing {
    /// Begins an empty page. `member` is the name of the member that holds the entries.
    #[must_use]
    pub(super) fn new(member: &str) -> Self {
        let text = format!("{{\"{member}\":[");
        Self {
            start: text.len(),
            text,
        }
    }

    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.text.len() == self.start
    }

    /// Adds an entry and returns true. If the page has no space for the entry, leaves the entry out
    /// and returns false. The first entry is added whatever its size.
    ///
    /// # Errors
    /// `internal` when the entry cannot be serialized.
    pub(super) fn push(&mut self, entry: &impl Serialize) -> Result<bool, Problem> {
        let entry = serde_json::to_string(entry)
            .map_err(|_| Problem::internal("an entry of a list cannot be written"))?;
        if !self.is_empty() {
            if self.text.len() + 1 + entry.len() + RESERVED_END_BYTES > MAX_PAGE_BYTES {
                return Ok(false);
            }
            self.text.push(',');
        }
        self.text.push_str(&entry);
        Ok(true)
    }

    /// Ends the page with further members, such as the position of the next page. Returns the page
    /// as a response.
    pub(super) fn close(mut self, members: &[(&str, Value)]) -> Response {
        self.text.push(']');
        for (name, value) in members {
            let _ = write!(self.text, ",\"{name}\":{value}");
        }
        self.text.push('}');
        ([(CONTENT_TYPE, "application/json")], self.text).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::sample;
    use crate::http::wire::list::RequestList;
    use crate::http::wire::request::InterventionRequest;
    use serde_json::json;

    async fn text(response: Response) -> String {
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn page_equals_the_list_of_the_document() {
        let request = InterventionRequest::for_caller(
            &sample::request(),
            &sample::approver(),
            &sample::settings(),
        );
        for count in 0..3 {
            let mut listing = Listing::new("requests");
            let requests = vec![request.clone(); count];
            for request in &requests {
                assert!(listing.push(request).unwrap());
            }
            let next_cursor = (count == 2).then(|| "x".to_owned());
            let members = [
                ("next_cursor", json!(next_cursor)),
                ("open", json!(7)),
                ("open_more", json!(false)),
            ];
            let page = text(listing.close(&members)).await;
            let expected = serde_json::to_value(RequestList {
                requests,
                next_cursor,
                open: 7,
                open_more: false,
            })
            .unwrap();
            assert_eq!(serde_json::from_str::<Value>(&page).unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn page_ends_before_4_mib_and_holds_at_least_one_entry() {
        let large = "x".repeat(MAX_PAGE_BYTES);
        let mut listing = Listing::new("items");
        assert!(listing.push(&large).unwrap() && !listing.push(&json!(1)).unwrap());
        let quarter = "x".repeat(MAX_PAGE_BYTES / 4 - 100);
        let mut listing = Listing::new("items");
        let taken = (0..8)
            .take_while(|_| listing.push(&quarter).unwrap())
            .count();
        assert_eq!(taken, 4);
        let page = text(listing.close(&[("next_after", json!(4))])).await;
        assert!(page.len() <= MAX_PAGE_BYTES);
    }
}
