//! Reads the list of a server's tools page by page, and limits the size of the list.

use serde_json::Value;

use super::client::ToolListing;
use super::wire::{Revision, RpcAnswer};

const MAX_PAGES: usize = 100;
const MAX_TOOLS: usize = 1000;
/// The maximum size of one list over all pages, in bytes of JSON.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// The pages of a list that have been read so far.
#[derive(Debug, Default)]
pub(super) struct Pages {
    tools: Vec<Value>,
    read_count: usize,
    size: usize,
    cursor: Option<Value>,
}

impl Pages {
    pub(super) fn id(&self) -> String {
        format!("list-{}", self.read_count + 1)
    }

    /// Returns the parameter `cursor` of the request for the next page; `None` for the first page.
    pub(super) fn cursor(&self) -> Option<(&'static str, String)> {
        let cursor = self.cursor.as_ref()?;
        Some(("cursor", cursor.to_string()))
    }

    /// Adds a page. Returns whether another page follows.
    ///
    /// # Errors
    /// Fails if the page is an error, if its tools cannot be read, or if the list exceeds a limit.
    /// The error is the reason.
    pub(super) fn add(&mut self, page: RpcAnswer) -> Result<bool, String> {
        let page = match page {
            RpcAnswer::Result(page) => page,
            RpcAnswer::Error { code, .. } => {
                return Err(format!("it reported error {code} when asked for its tools"));
            }
        };
        let Some(Value::Array(tools)) = page.get("tools") else {
            return Err("its list of tools cannot be read".to_owned());
        };
        self.size += tools
            .iter()
            .map(|tool| tool.to_string().len())
            .sum::<usize>();
        self.tools.extend(tools.iter().cloned());
        self.read_count += 1;
        let cursor = page.get("nextCursor").filter(|cursor| cursor.is_string());
        self.cursor = cursor.cloned();
        if self.tools.len() > MAX_TOOLS || self.size > MAX_BYTES {
            return Err("its list of tools is too long".to_owned());
        }
        if self.cursor.is_some() && self.read_count == MAX_PAGES {
            return Err("its list of tools has too many pages".to_owned());
        }
        Ok(self.cursor.is_some())
    }

    pub(super) fn listing(self, revision: Revision, server: Value) -> ToolListing {
        ToolListing {
            revision,
            server,
            tools: self.tools,
        }
    }
}
