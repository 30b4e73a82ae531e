//! The configuration of a test's engines.

use std::sync::Arc;

use holdpoint::agent::Agents;
use holdpoint::app;
use holdpoint::config::environment::Environment;
use holdpoint::config::layers::Flags;
use holdpoint::config::{self, Config, Source};
use holdpoint::net::Net;
use holdpoint::policy::Policy;
use holdpoint::tool::catalog::Catalog;
use holdpoint::world::Mistakes;

use super::{EngineHarness, held};

/// A configuration, and the parts of an engine that depend on the configuration alone. The engines
/// of one configuration share these parts: some tests create an engine at each step, and would
/// spend much of their time on compiling schemas and rules.
#[derive(Clone)]
pub(super) struct ConfiguredParts {
    pub(super) config: Arc<Config>,
    pub(super) agents: Arc<Agents>,
    pub(super) policy: Arc<Policy>,
    /// The tools of the configuration. Their calls share the kept connections, which only calls
    /// that may be repeated use.
    pub(super) catalog: Arc<Catalog>,
}

impl From<Config> for ConfiguredParts {
    fn from(config: Config) -> Self {
        let mut mistakes = Mistakes::default();
        let catalog = Catalog::build(
            config.tools.clone(),
            &Net::new().unwrap(),
            &Arc::new(config.redactor()),
            &mut mistakes,
        );
        let catalog = config.with_human_tools(catalog);
        let specs: Vec<_> = catalog.specs().cloned().collect();
        Self {
            agents: Arc::new(config.agents()),
            policy: Arc::new(Policy::new(&config.rules(), &specs, &mut mistakes)),
            catalog: Arc::new(catalog),
            config: Arc::new(config),
        }
    }
}

impl EngineHarness {
    /// Returns the configuration of engines that are created from now on, and its parts of an
    /// engine.
    pub(super) fn configured(&self) -> ConfiguredParts {
        let mut read = held(&self.read);
        if let Some((yaml, variables, parts)) = &*read
            && (yaml, variables) == (&self.yaml, &self.variables)
        {
            return parts.clone();
        }
        let yaml = self
            .yaml
            .replace("{model}", "http://127.0.0.1:9/v1")
            .replace("{tool}", &self.tool.url);
        let source = Source::File("holdpoint.yaml".into(), yaml);
        let environment = Environment::new(&self.variables, &[]);
        let (config, _) = config::load(source, &environment, &Flags::default(), app::check)
            .unwrap_or_else(|report| panic!("{report}"));
        let parts = ConfiguredParts::from(config);
        *read = Some((self.yaml.clone(), self.variables.clone(), parts.clone()));
        parts
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
