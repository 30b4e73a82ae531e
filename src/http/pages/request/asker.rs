//! The asker of a call at a gate: whether it waits for the answer, and the effect of an approval.

use maud::{Markup, html};

use super::View;
use super::deadline::span;
use crate::engine::gate::AskerNow;
use crate::http::Http;
use crate::http::pages::translations::fill;
use crate::http::server::problem::Problem;
use crate::store::{ReadError, RequestRow};

/// Reads the state of the asker of the request's call; `None` if the request is not of a gate, or
/// the journal cannot be read.
pub(super) async fn load(http: &Http, row: &RequestRow) -> Result<Option<AskerNow>, Problem> {
    match http
        .engine
        .asker_now(row.root_task_id, row.agent_path.first())
        .await
    {
        Ok(asker) => Ok(asker),
        Err(ReadError::Corrupt(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Says whether the asker waits, and the effect of an approval. Empty for a closed request, and for
/// a request that is not of a gate.
pub(super) fn line(view: &View<'_>, open: bool) -> Markup {
    let Some(asker) = view.asker.as_ref().filter(|_| open) else {
        return html! {};
    };
    let texts = view.texts;
    let time = [("time", span(asker.use_within, view.words))];
    let time = time.each_ref().map(|(name, text)| (*name, text.as_str()));
    let waits = if asker.waits {
        texts.asker_waits
    } else {
        texts.asker_is_gone
    };
    let effect = match (asker.waits, asker.runs_elsewhere) {
        (true, false) => texts.yes_runs.to_owned(),
        (true, true) => texts.yes_hands.to_owned(),
        (false, false) => fill(texts.yes_waits, &time),
        (false, true) => fill(texts.yes_hands_later, &time),
    };
    html! { p.why.asker { (waits) " " (effect) } }
}
