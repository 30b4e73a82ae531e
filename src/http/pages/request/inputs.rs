//! Renders the fields of the page's forms, each with its label, hint, submitted text and mistakes.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::View;
use super::schema::{FieldValue, SchemaField};
use super::several::call_number;
use super::submitted::{FieldMistake, FormName, SubmittedForm};
use crate::http::pages::error_texts::localized;
use crate::http::pages::layout::visible;
use crate::task::request_kind::ResponseKind;

pub(crate) struct InputField<'v> {
    view: &'v View<'v>,
    form: FormName,
    name: String,
    default: Option<&'v str>,
}

impl<'v> InputField<'v> {
    pub(super) fn new(view: &'v View<'v>, form: FormName, name: impl Into<String>) -> Self {
        Self {
            view,
            form,
            name: name.into(),
            default: None,
        }
    }

    /// Sets the text or the choice that the field shows if none was submitted.
    pub(super) fn with_default(self, default: &'v str) -> Self {
        Self {
            default: Some(default),
            ..self
        }
    }

    pub(super) fn id(&self) -> String {
        element_id(self.form, &self.name)
    }

    /// Returns the submitted text of the field; `None` if the field or its form was not submitted.
    pub(super) fn submitted_text(&self) -> Option<&'v str> {
        self.view
            .submitted
            .and_then(|submitted| submitted.text(self.form, &self.name))
    }

    fn shown_text(&self) -> Option<&'v str> {
        self.submitted_text().or(self.default)
    }

    fn field_mistakes(&self) -> Vec<&'v FieldMistake> {
        let submitted = self.view.submitted.into_iter();
        submitted
            .filter(|submitted| submitted.form == self.form)
            .flat_map(|submitted| &submitted.mistakes)
            .filter(|mistake| mistake.field.as_deref() == Some(self.name.as_str()))
            .collect()
    }

    pub(super) fn aria_invalid(&self) -> Option<&'static str> {
        (!self.field_mistakes().is_empty()).then_some("true")
    }

    /// Returns the ids of the field's hint and mistakes, for `aria-describedby`.
    pub(super) fn aria_described_by(&self, hint: bool) -> Option<String> {
        let hint = hint.then(|| format!("{}-hint", self.id()));
        let error = self.aria_invalid().map(|_| format!("{}-error", self.id()));
        let ids: Vec<String> = hint.into_iter().chain(error).collect();
        (!ids.is_empty()).then(|| ids.join(" "))
    }

    pub(super) fn mistakes(&self) -> Markup {
        let mistakes = self.field_mistakes();
        html! {
            @if !mistakes.is_empty() {
                p.error id=(format!("{}-error", self.id())) {
                    (self.view.words.error) (self.view.words.colon)
                    @for (index, mistake) in mistakes.iter().enumerate() {
                        @if index > 0 { "; " }
                        (mistake_text(self.view, mistake))
                    }
                }
            }
        }
    }

    /// Renders a text field of several lines. If `json` is true, the text may be JSON, so the
    /// browser does not check its spelling.
    pub(super) fn text_area(&self, label: &str, rows: u32, json: bool) -> Markup {
        let text = self.shown_text().unwrap_or_default();
        let class = match json {
            true if self.name.ends_with(".arguments") => Some("typed exact"),
            true => Some("typed"),
            false => None,
        };
        html! {
            div.field {
                label for=(self.id()) { (label) }
                (self.mistakes())
                textarea class=[class] id=(self.id()) name=(self.name) rows=(rows) spellcheck=[json.then_some("false")]
                    autocomplete="off" aria-invalid=[self.aria_invalid()] aria-describedby=[self.aria_described_by(false)] { "\n" (text) }
            }
        }
    }

    /// Renders a list of choices. `options` are pairs of a value and its text.
    pub(super) fn select(
        &self,
        label: &str,
        hint: Option<&str>,
        options: &[(&str, &str)],
    ) -> Markup {
        let chosen = self.shown_text().unwrap_or_default();
        html! {
            div.field {
                label for=(self.id()) { (label) }
                @if let Some(hint) = hint { p.hint id=(format!("{}-hint", self.id())) { (hint) } }
                (self.mistakes())
                select id=(self.id()) name=(self.name) aria-invalid=[self.aria_invalid()]
                    aria-describedby=[self.aria_described_by(hint.is_some())] {
                    @for (value, text) in options { option value=(value) selected[*value == chosen] { (text) } }
                }
            }
        }
    }

    /// Returns the CSS class for labels that the agent wrote; `None` if the form is not the
    /// agent's.
    fn agent_style(&self) -> Option<&'static str> {
        let response = self.view.request.kind.properties().response;
        (response == ResponseKind::AgentForm).then_some("exact")
    }

    /// Renders the field of a schema's member. If `secret` is true, the text is hidden while it is
    /// typed, and is not shown again after a mistake. `offered` holds the answers that the browser
    /// suggests. The input does not limit the length of a text, because a browser counts UTF-16
    /// code units and the schema counts characters; the service checks the length.
    pub(super) fn schema_field(
        &self,
        field: &SchemaField,
        secret: bool,
        offered: &[String],
    ) -> Markup {
        let (words, agent) = (self.view.words, self.agent_style());
        let label = html! {
            bdi class=[agent] { (visible(field.title.as_deref().unwrap_or(&field.name))) }
            @if matches!(field.value, FieldValue::Json) { " " span.soft { "(" (words.result_json) ")" } }
            @if !field.required { " " span.soft { "(" (words.optional) ")" } }
        };
        let about = html! {
            @if let Some(description) = &field.description {
                p.hint id=(format!("{}-hint", self.id())) { bdi class=[agent] { (visible(description)) } }
            }
            (self.mistakes())
        };
        let input = self.schema_input(field, secret, offered);
        let described = self.aria_described_by(field.description.is_some());
        html! {
            @if matches!(field.value, FieldValue::MultipleChoice(_)) {
                fieldset id=(self.id()) tabindex="-1" aria-describedby=[described] { legend { (label) } (about) (input) }
            } @else {
                div.field { label for=(self.id()) { (label) } (about) (input) }
            }
        }
    }

    fn schema_checkboxes(&self, field: &SchemaField, all: &[String]) -> Markup {
        let agent = self.agent_style();
        let is_checked = |name: &str| {
            let submitted = self.view.submitted;
            submitted.is_some_and(|submitted| submitted.text(self.form, name).is_some())
        };
        html! {
            @for (index, text) in all.iter().enumerate() {
                @let name = field.choice_name(index);
                @let id = format!("{}-{index}", self.id());
                div.choice {
                    input type="checkbox" id=(id) name=(name) value=(text) checked[is_checked(&name)] autocomplete="off";
                    label for=(id) { bdi class=[agent] { (visible(text)) } }
                }
            }
        }
    }

    fn schema_input(&self, field: &SchemaField, secret: bool, offered: &[String]) -> Markup {
        let words = self.view.words;
        let class = self.default.map(|_| "exact");
        let hint = field.description.is_some();
        let rows = match self.shown_text() {
            _ if self.name == "field.answer" => 4,
            Some(text) => text.lines().count().max(text.len() / 60).clamp(1, 12),
            None => 2,
        };
        let has_lines = self.shown_text().is_some_and(|text| text.contains('\n'));
        let list = (!offered.is_empty()).then(|| format!("{}-offered", self.id()));
        html! {
            @match &field.value {
                FieldValue::Text(None, max) if !secret && list.is_none() && (has_lines || max.is_none_or(|max| max > 200)) => {
                    textarea class=[class] id=(self.id()) name=(self.name) rows=(rows) required[field.required]
                        aria-invalid=[self.aria_invalid()] aria-describedby=[self.aria_described_by(hint)] {
                        "\n" (self.shown_text().unwrap_or_default())
                    }
                }
                FieldValue::Number(is_integer, min, max) if !secret && self.default.is_none() => {
                    input id=(self.id()) name=(self.name) type="number"
                        step=(if *is_integer { "1" } else { "any" }) min=[min.as_deref()] max=[max.as_deref()]
                        required[field.required] autocomplete="off" value=[self.shown_text()]
                        aria-invalid=[self.aria_invalid()] aria-describedby=[self.aria_described_by(hint)];
                }
                FieldValue::Text(..) | FieldValue::Number(..) => {
                    (self.text_input(field, secret, list.as_deref()))
                    @if let Some(list) = &list { datalist id=(list) { @for text in offered { option value=(text) {} } } }
                }
                FieldValue::Json => {
                    textarea class="typed exact" id=(self.id()) name=(self.name) rows=(rows) spellcheck="false" autocomplete="off"
                        required[field.required] aria-invalid=[self.aria_invalid()] aria-describedby=[self.aria_described_by(hint)] {
                        "\n" (self.shown_text().unwrap_or_default())
                    }
                }
                FieldValue::MultipleChoice(all) => (self.schema_checkboxes(field, all)),
                FieldValue::Boolean => (self.schema_select(field, hint, &[("true", words.yes), ("false", words.no)])),
                FieldValue::SingleChoice(values) => {
                    @let values: Vec<(String, String)> =
                        values.iter().map(|(value, _)| (value.clone(), visible(value))).collect();
                    @let values: Vec<(&str, &str)> = values.iter().map(|(value, text)| (value.as_str(), text.as_str())).collect();
                    (self.schema_select(field, hint, &values))
                }
            }
        }
    }

    /// Renders a text input of one line. Numbers and dates among a call's arguments are edited in
    /// such an input, too: a browser submits an empty text for a number or a date that it cannot
    /// read, and the forms that edit arguments are sent unchecked (`choices.rs`), so the argument
    /// would be left out. A text input submits the person's text, and the service reports the
    /// mistake.
    fn text_input(&self, field: &SchemaField, secret: bool, list: Option<&str>) -> Markup {
        let format = if let FieldValue::Text(format, _) = field.value {
            format
        } else {
            None
        };
        let is_date = self.default.is_some() && format == Some("date");
        // A phone's keyboard of digits may lack the minus sign. In some regions its decimal
        // keyboard has a comma and no point, so a number with decimals keeps the whole keyboard.
        let has_digits_only =
            matches!(&field.value, FieldValue::Number(true, Some(min), _) if !min.starts_with('-'));
        let kind = if secret {
            "password"
        } else {
            format.filter(|_| !is_date).unwrap_or("text")
        };
        // In a password field, a browser ignores `off` and fills in a password that it has saved
        // for this service, such as the key of the sign-in page.
        let autocomplete = if kind == "password" {
            "new-password"
        } else {
            "off"
        };
        html! {
            input class=[self.default.map(|_| "exact")] id=(self.id()) name=(self.name) type=(kind)
                inputmode=[has_digits_only.then_some("numeric")] placeholder=[is_date.then_some("YYYY-MM-DD")]
                required[field.required] list=[list] autocomplete=(autocomplete)
                value=[self.shown_text().filter(|_| !secret)] aria-invalid=[self.aria_invalid()]
                aria-describedby=[self.aria_described_by(field.description.is_some())];
        }
    }

    fn schema_select(&self, field: &SchemaField, hint: bool, values: &[(&str, &str)]) -> Markup {
        let words = self.view.words;
        let agent = self.agent_style();
        let placeholder = if field.required {
            words.choose
        } else {
            words.no_choice
        };
        html! {
            select class=[agent] id=(self.id()) name=(self.name) required[field.required] aria-invalid=[self.aria_invalid()]
                aria-describedby=[self.aria_described_by(hint)] {
                option value="" { (placeholder) }
                @for (value, text) in values {
                    option class=[agent] value=(value) selected[self.shown_text() == Some(*value)] { (text) }
                }
            }
        }
    }
}

/// Returns the id of a field's HTML element, which is unique on the page. The id is the id of the
/// form, `-` and the name. In the name, `_{code point in hexadecimal}_` replaces each character
/// that is not an ASCII letter, an ASCII digit or `-`.
fn element_id(form: FormName, name: &str) -> String {
    let mut id = format!("{}-", form.id());
    for c in name.chars() {
        if c.is_ascii_alphanumeric() || c == '-' {
            id.push(c);
        } else {
            let _ = write!(id, "_{:x}_", u32::from(c));
        }
    }
    id
}

fn mistake_text(view: &View<'_>, mistake: &FieldMistake) -> Markup {
    html! {
        @if !mistake.pointer.is_empty() { code { (visible(&mistake.pointer)) } " " }
        (localized(view.words, &mistake.detail))
    }
}

/// Splits a field's name `call.{id}.{part}` into the call's id and the part; `None` for any other
/// name.
#[must_use]
pub(super) fn call_part(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("call.")?.split_once('.')
}

/// Renders the list of all mistakes for the top of the page. A mistake about a field has a link to
/// the field.
pub(crate) fn mistake_list(view: &View<'_>, submitted: &SubmittedForm) -> Markup {
    let words = view.words;
    let secret = view.row.spec.kind.takes_secrets();
    html! {
        div.errors role="alert" tabindex="-1" autofocus {
            h2 { (words.not_stored) }
            p { (words.correct_below) @if secret { " " (words.enter_again) } }
            ul {
                @for mistake in &submitted.mistakes {
                    li {
                        @match &mistake.field {
                            Some(field) => { a href=(format!("#{}", element_id(submitted.form, field))) { (field_label(view, field)) } (words.colon) (mistake_text(view, mistake)) }
                            None => (mistake_text(view, mistake)),
                        }
                    }
                }
            }
        }
    }
}

/// Returns the label of a field in the list of mistakes. If several calls have the same tool, the
/// label of a call's field begins with the call's number and the tool. Otherwise it begins with the
/// tool, except for the field of an argument.
fn field_label(view: &View<'_>, field: &str) -> String {
    let in_call = call_part(field);
    let part = in_call.map_or(field, |(_, part)| part);
    let argument = part.strip_prefix("field.");
    let label = argument.map_or_else(|| part_label(view, part), visible);
    let calls = &view.request.tool_calls;
    let numbered = |(id, _): (&str, &str)| {
        let mut numbered = calls.iter().enumerate();
        numbered.find(|(_, call)| call.tool_call_id == id)
    };
    let Some((index, call)) = in_call.and_then(numbered) else {
        return label;
    };
    let tool = visible(&call.name);
    if calls.iter().filter(|other| other.name == call.name).count() > 1 {
        format!("{} {tool}: {label}", call_number(view, index))
    } else if argument.is_none() {
        format!("{tool}: {label}")
    } else {
        label
    }
}

fn part_label(view: &View<'_>, part: &str) -> String {
    let words = view.words;
    let label = match part {
        "arguments" => words.edit_label,
        "result" | "result_type" => words.result_label,
        "reason" | "comment" => view.texts.comment,
        "then" => words.then_label,
        "action" => words.decision,
        "remember" => view.texts.remember_yes,
        other => return visible(other),
    };
    label.to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::page;
    use crate::http::openapi::sample;
    use crate::task::request::RequestKind;

    #[test]
    fn password_field_is_not_filled_with_the_saved_key_of_the_sign_in_page() {
        let credentials = sample::of_kind(RequestKind::Credentials);
        let mut result = sample::of_kind(RequestKind::ExternalResult);
        result.spec.form = Some(json!({"type": "object", "properties": {
            "code": {"type": "string", "format": "password"}}}));
        for (row, count) in [(credentials, 2), (result, 1)] {
            let page = page(&row, &sample::caller());
            let inputs = page.split("<input ").skip(1);
            let tags = inputs.filter_map(|rest| Some(rest.split_once('>')?.0));
            let passwords = tags.filter(|tag| tag.contains("type=\"password\""));
            let kept = passwords.filter(|tag| tag.contains("autocomplete=\"new-password\""));
            assert_eq!(kept.count(), count, "{page}");
        }
    }
}
