//! Renders one request as a row of a list. A row has a link to the request's page, and no button.

use maud::{Markup, html};

use crate::http::Settings;
use crate::http::pages::layout::visible;
use crate::http::pages::request::deadline::duration_text;
use crate::http::pages::request::kind::kind_word;
use crate::http::pages::site::Site;
use crate::http::pages::site_texts::SiteTexts;
use crate::http::pages::translations::fill;
use crate::http::wire::brief::RequestBrief;
use crate::http::wire::request::{WireEffect, page_url};
use crate::people::authorization::required_approvals;
use crate::store::RequestRow;
use crate::task::time::Time;

/// Returns one line with the summary of a request's first call and the number of further calls.
#[must_use]
pub(crate) fn summary(row: &RequestRow, texts: &SiteTexts) -> String {
    let mut calls = row.spec.own_calls();
    let first = calls.next().map(|first| visible(&first.summary));
    let (mut line, further) = (first.unwrap_or_default(), calls.count());
    if further > 0 {
        line = format!("{line} {}", fill(texts.and_more, &[("count", &further)]));
    }
    line
}

pub(super) fn facts(site: &Site<'_>, row: &RequestRow, settings: &Settings, now: Time) -> Markup {
    let (texts, words) = (site.texts(), site.words());
    let brief = RequestBrief::from_row(row, settings);
    let age = duration_text(now.since(row.created_at), words);
    let rule = row.spec.own_calls().find_map(|call| call.rule.as_deref());
    let mut counts = Vec::new();
    if brief.calls > 1 {
        let text = fill(texts.calls, &[("count", &brief.calls)]);
        counts.push(html! { (text) });
    }
    let required = required_approvals(site.caller, &row.spec);
    if required > 1 {
        let text = fill(
            texts.have_approved,
            &[("have", &brief.approvals), ("required", &required)],
        );
        counts.push(html! { span.approved { (text) } });
    }
    match brief.warnings {
        0 => {}
        1 => counts.push(html! { (texts.warning) }),
        count => {
            let text = fill(texts.warnings, &[("count", &count)]);
            counts.push(html! { (text) });
        }
    }
    html! {
        p.soft {
            bdi { (visible(&brief.agent_path.join(" › "))) }
            " · " bdi { (fill(texts.for_user, &[("user", &visible(&brief.user_id))])) }
            " · " (fill(texts.asked_ago, &[("time", &age)]))
            @if let Some(rule) = rule { " · " bdi { (fill(texts.by_rule, &[("rule", &visible(rule))])) } }
        }
        @if !counts.is_empty() {
            p.counts {
                @for (index, count) in counts.iter().enumerate() {
                    @if index > 0 { " · " }
                    (count)
                }
            }
        }
    }
}

/// Renders the head of a row: a link with the request's summary, and beside it the kind and, for an
/// approval, the effects of the calls. The link leads to the request's page of this service, even
/// if the setting `request_url` names another page.
pub(super) fn request_link(site: &Site<'_>, row: &RequestRow, settings: &Settings) -> Markup {
    let texts = site.texts();
    let brief = RequestBrief::from_row(row, settings);
    let effects = brief.effects.iter().map(|effect| match effect {
        WireEffect::ReadOnly => texts.effect_read_only,
        WireEffect::Idempotent => texts.effect_idempotent,
        WireEffect::Once => texts.effect_once,
    });
    let decides_calls = brief.kind.properties().decides_calls;
    let about: Vec<_> = std::iter::once(kind_word(brief.kind, site.words()))
        .chain(effects.filter(|_| decides_calls))
        .collect();
    html! {
        p.head {
            a href=(page_url(row.spec.request_id, settings)) {
                span.unseen { (texts.summary) ": " }
                span.exact { (summary(row, texts)) }
            }
            span.about { (about.join(" · ")) }
        }
    }
}

/// Renders an open request as a row. When the request no longer waits for the person, the script
/// `inbox.js` writes the reason into the element `.told`. On the screen, `.told` takes the place of
/// the element `.facts`, so the row keeps its height.
pub(super) fn open_row(
    site: &Site<'_>,
    row: &RequestRow,
    settings: &Settings,
    now: Time,
) -> Markup {
    let words = site.words();
    let time_left = row.expires_at.map(|at| at.since(now));
    let is_urgent = time_left.is_some_and(|left| left <= super::list::URGENT_WITHIN);
    html! {
        li data-request=(row.spec.request_id) {
            @if let Some(left) = time_left {
                p.left.urgent[is_urgent] {
                    @if is_urgent { span aria-hidden="true" { "▲ " } }
                    (fill(words.time_left, &[("time", &duration_text(left, words))]))
                }
            }
            (request_link(site, row, settings))
            div.facts { (facts(site, row, settings, now)) }
            p.told {}
        }
    }
}
