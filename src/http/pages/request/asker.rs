//! For a call at a gate, shows whether its asker (the client that proposed the call) waits for the
//! answer, and how an approval takes effect.

use maud::{Markup, html};

use super::View;
use super::deadline::duration_text;
use crate::engine::gate::AskerStatus;
use crate::http::Http;
use crate::http::pages::translations::fill;
use crate::http::pages::unless_corrupt;
use crate::http::server::problem::Problem;
use crate::store::RequestRow;

/// Reads the state of the client that proposed the request's call at a gate. `None` if the call was
/// not proposed at a gate, or if the journal cannot be read.
pub(super) async fn load(http: &Http, row: &RequestRow) -> Result<Option<AskerStatus>, Problem> {
    let agent = row.agent_path.first();
    let read = http.engine.asker_status(row.root_task_id, agent).await;
    Ok(unless_corrupt(read)?.flatten())
}

/// Renders the line about the client that proposed the call. Empty if the request is closed, or if
/// the call was not proposed at a gate.
pub(super) fn line(view: &View<'_>, is_open: bool) -> Markup {
    let Some(asker) = view.asker.as_ref().filter(|_| is_open) else {
        return html! {};
    };
    let texts = view.texts;
    let time = duration_text(asker.use_within, view.words);
    let presence = if asker.is_waiting {
        texts.asker_waiting
    } else {
        texts.asker_absent
    };
    let effect = match (asker.is_waiting, asker.runs_elsewhere) {
        (true, false) => texts.approval_runs_call,
        (true, true) => texts.approval_permits_call,
        (false, false) => texts.approval_runs_call_later,
        (false, true) => texts.approval_permits_call_later,
    };
    html! { p.why.asker { (presence) " " (fill(effect, &[("time", &time)])) } }
}
