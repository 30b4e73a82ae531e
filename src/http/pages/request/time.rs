//! Renders a timestamp in UTC. The script `pages/follow.js` shows it in the reader's own zone, with
//! the time in UTC beside it.

use maud::{Markup, html};

use crate::http::pages::layout::utc_text;

#[must_use]
pub(super) fn time_tag(at: &str) -> Markup {
    html! { time datetime=(at) { (utc_text(at)) } }
}
