//! The configuration of a test's engines.

use super::EngineHarness;

impl EngineHarness {
    pub fn yaml(&self) -> String {
        self.yaml.clone()
    }

    /// Changes the configuration of engines that are created from now on.
    pub fn configure(&mut self, change: impl Fn(&str) -> String) {
        self.yaml = change(&self.yaml);
    }

    /// Replaces a part of the configuration of engines that are created from now on.
    pub fn replace(&mut self, part: &str, by: &str) {
        self.yaml = self.yaml.replace(part, by);
    }
}
