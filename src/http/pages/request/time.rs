//! Renders a timestamp on the page in UTC. The script (`pages/follow.js`) shows the time in the
//! reader's own zone, together with the time in UTC.

use maud::{Markup, html};

use crate::http::pages::layout::utc_text;

/// Renders a timestamp of the API as an element that the script can show in the reader's zone.
#[must_use]
pub(super) fn time_tag(at: &str) -> Markup {
    html! { time datetime=(at) { (utc_text(at)) } }
}
