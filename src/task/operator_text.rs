//! Tells which of a call's texts come from the operator's configuration. Briefs of requests and
//! messages leave out a call's other texts, because readers could mistake a tool name or a summary
//! that an agent wrote for a statement of this service.

use serde::{Deserialize, Serialize};

use super::request::CallSpec;

/// The texts of a call that come from the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorText {
    /// The configuration has the tool's name. The summary comes from the tool's template. If the
    /// tool has no template, its name is the summary.
    #[default]
    NameAndSummary,
    /// The configuration has the tool's name. The summary is the agent's own text.
    Name,
    /// The agent wrote the tool's name, which is also the summary.
    Nothing,
}

impl OperatorText {
    /// Whether this value is the default, which the JSON of a stored request omits.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl CallSpec {
    /// Returns the name of the tool; `None` if the name does not come from the configuration.
    #[must_use]
    pub fn operator_name(&self) -> Option<&str> {
        (self.operator_text != OperatorText::Nothing).then_some(self.name.as_str())
    }

    /// Returns the summary if it comes from the configuration. If only the tool's name comes from
    /// the configuration, returns the name. If neither does, returns `None`.
    #[must_use]
    pub fn operator_summary(&self) -> Option<&str> {
        match self.operator_text {
            OperatorText::NameAndSummary => Some(&self.summary),
            OperatorText::Name => Some(&self.name),
            OperatorText::Nothing => None,
        }
    }
}
