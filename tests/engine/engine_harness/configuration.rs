//! The configuration of a test's engines.

use std::sync::Arc;

use holdpoint::app;
use holdpoint::config::environment::Environment;
use holdpoint::config::layers::Flags;
use holdpoint::config::{self, Config, Source};

use super::{EngineHarness, held};

impl EngineHarness {
    /// Returns the configuration of engines that are created from now on.
    pub(super) fn config(&self) -> Arc<Config> {
        let mut read = held(&self.read);
        if let Some((yaml, variables, config)) = &*read
            && (yaml, variables) == (&self.yaml, &self.variables)
        {
            return Arc::clone(config);
        }
        let yaml = self
            .yaml
            .replace("{model}", "http://127.0.0.1:9/v1")
            .replace("{tool}", &self.tool.url);
        let source = Source::File("holdpoint.yaml".into(), yaml);
        let environment = Environment::new(&self.variables, &[]);
        let (config, _) = config::load(source, &environment, &Flags::default(), app::check)
            .unwrap_or_else(|report| panic!("{report}"));
        let config = Arc::new(config);
        *read = Some((
            self.yaml.clone(),
            self.variables.clone(),
            Arc::clone(&config),
        ));
        config
    }

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
