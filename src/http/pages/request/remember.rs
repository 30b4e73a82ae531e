//! The part of the approval form in which a person asks for a standing decision. With a standing
//! decision, their approval also lets later calls through. The part is folded, and its checkbox
//! starts unticked. The part describes the later calls, and shows the condition that the operator's
//! rule sets for them.

use std::time::Duration;

use maud::{Markup, html};

use super::View;
use super::inputs::InputField;
use super::submitted::FormName;
use crate::http::pages::layout::visible;
use crate::http::pages::translations::fill;
use crate::task::decision::Door;
use crate::task::grant::{GrantScope, Offer};
use crate::task::request::CallSpec;
use crate::task::units::format_duration;

/// The durations that the form may offer for a standing decision. The rules of the open calls set a
/// maximum. The form offers the maximum, and each of these durations that is below it.
const DURATIONS: [Duration; 5] = [
    Duration::from_mins(15),
    Duration::from_hours(1),
    Duration::from_hours(4),
    Duration::from_hours(24),
    Duration::from_hours(24 * 7),
];

/// Renders the inputs with which a person asks for a standing decision. Returns `None` in each of
/// these cases:
/// - The reader came by a sealed link or by Slack.
/// - Several people have to approve.
/// - No call is open.
/// - An open call has no [`Offer`] of a standing decision.
/// - The offers for the open calls have no [`GrantScope`] in common.
pub(super) fn remember_fields(view: &View<'_>) -> Option<Markup> {
    if matches!(view.caller.door, Some(Door::Link | Door::Slack)) || view.required() > 1 {
        return None;
    }
    let state = view.row.state();
    let calls: Vec<&CallSpec> = state.open_calls(&view.caller.user_id).collect();
    let offers: Option<Vec<&Offer>> = calls.iter().map(|call| call.offer.as_deref()).collect();
    let offers = offers.filter(|offers| !offers.is_empty())?;
    let scopes: Vec<GrantScope> = [GrantScope::Task, GrantScope::Owner]
        .into_iter()
        .filter(|scope| offers.iter().all(|offer| offer.scopes.contains(scope)))
        .collect();
    let max_duration = offers.iter().map(|offer| offer.most).min()?;
    let texts = view.texts;
    let checkbox = InputField::new(view, FormName::Decide, "remember");
    let open = checkbox.submitted_text().is_some() || checkbox.aria_invalid().is_some();
    (!scopes.is_empty()).then(|| html! {
        details.other open[open] {
            summary { (texts.remember) }
            p.hint { (texts.remember_about) }
            ul { @for call in &calls { (covered_calls(view, call)) } }
            div.field {
                (checkbox.mistakes())
                div.choice {
                    input type="checkbox" id=(checkbox.id()) name="remember" value="yes" autocomplete="off"
                        aria-invalid=[checkbox.aria_invalid()] aria-describedby=[checkbox.aria_described_by(false)];
                    label for=(checkbox.id()) { (texts.remember_yes) }
                }
            }
            (scope_select(view, &scopes))
            (duration_select(view, max_duration))
            p { a href=(format!("{}/grants", view.prefix)) { (view.site().texts().grants) } }
        }
    })
}

/// Renders a sentence about the later calls that a standing decision about `call` would cover.
fn covered_calls(view: &View<'_>, call: &CallSpec) -> Markup {
    let texts = view.texts;
    let rule = visible(call.rule.as_deref().unwrap_or_default());
    let about = |text| fill(text, &[("tool", &visible(&call.name)), ("rule", &rule)]);
    html! {
        @if let Some(offer) = call.offer.as_deref() {
            li {
                @match &offer.when {
                    Some(when) => { (about(texts.remember_when)) " " code { (visible(when)) } }
                    None => (about(texts.remember_same)),
                }
                " · " (fill(texts.remember_uses, &[("count", &offer.uses)]))
            }
        }
    }
}

fn scope_select(view: &View<'_>, scopes: &[GrantScope]) -> Markup {
    let texts = view.texts;
    let agent = view.row.agent_path.first().map(String::as_str);
    let owner = fill(
        texts.remember_owner,
        &[
            ("user", &visible(&view.row.owner)),
            ("agent", &visible(agent.unwrap_or_default())),
        ],
    );
    let options: Vec<(&str, &str)> = scopes
        .iter()
        .map(|scope| match scope {
            GrantScope::Task => (scope.as_str(), texts.remember_task),
            GrantScope::Owner => (scope.as_str(), owner.as_str()),
        })
        .collect();
    let first = options.first().map_or("", |(value, _)| value);
    InputField::new(view, FormName::Decide, "remember.for")
        .with_default(first)
        .select(texts.remember_for, None, &options)
}

fn duration_select(view: &View<'_>, max_duration: Duration) -> Markup {
    let shorter = DURATIONS.into_iter().filter(|time| *time < max_duration);
    let times: Vec<(String, String)> = shorter
        .chain([max_duration])
        .map(|time| (format_duration(time), time_text(time, view)))
        .collect();
    let options: Vec<(&str, &str)> = times
        .iter()
        .map(|(value, text)| (value.as_str(), text.as_str()))
        .collect();
    let first = options.first().map_or("", |(value, _)| value);
    InputField::new(view, FormName::Decide, "remember.expires_in")
        .with_default(first)
        .select(view.texts.remember_time, None, &options)
}

fn time_text(time: Duration, view: &View<'_>) -> String {
    if time < Duration::from_mins(1) {
        format_duration(time)
    } else {
        super::deadline::duration_text(time, view.words)
    }
}
