//! A fake server of the tool `refund` for the runs (the random sequences of events at a gate) of
//! `random_gates.rs`. Like an MCP server, it may change the tool's definition after the definition
//! was reviewed and locked, and may later return to the reviewed definition. For each attempt, it
//! records the definitions under which the attempt was made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use holdpoint::engine::EngineParts;
use holdpoint::task::id::{CallId, TaskId};
use holdpoint::task::tool_spec::ToolSpec;
use holdpoint::tool::catalog::Catalog;
use holdpoint::tool::{Credentials, DefinitionChange, Invocation, StartReason, Tool, ToolAnswer};
use serde_json::Value;
use tokio::sync::Semaphore;

/// The beginning of each changed definition.
pub const CHANGED: &str = "changed ";

/// A changed definition, or `None` for the reviewed definition.
pub type Definition = Option<String>;

/// The fake server. All processes of a test share the server, and share its state: if one process
/// compares the definitions ([`Tool::prepare`]), all processes know the result.
pub struct ToolServer(Mutex<State>);

struct State {
    /// All definitions that the server has had. The last definition is the present definition.
    definitions: Vec<Option<DefinitionChange>>,
    /// The index in `definitions` of the present definition at the time of the last comparison.
    known: usize,
    /// For each task, the value that `known` got by the last comparison for a start of the task's
    /// call. The next attempt at the call takes the entry out.
    compared: BTreeMap<TaskId, usize>,
    /// For each attempt at a call: the definitions under which the attempt may have been made.
    /// These are the definitions with the indexes from the attempt's entry in `compared` to
    /// `known`. The list is empty if `compared` had no entry.
    attempts: BTreeMap<CallId, Vec<Vec<Definition>>>,
}

impl ToolServer {
    pub fn start() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            definitions: vec![None],
            known: 0,
            compared: BTreeMap::new(),
            attempts: BTreeMap::new(),
        })))
    }

    /// Returns the parts of a process whose tool `refund` belongs to this server.
    pub fn behind(self: &Arc<Self>, parts: EngineParts) -> EngineParts {
        let refund = parts.catalog.get("refund").unwrap().tool.clone().unwrap();
        let catalog = Catalog::clone(&parts.catalog).with_tools(|spec| {
            let tool = Served(Arc::clone(&refund), Arc::clone(self));
            (spec.name == "refund").then(|| Arc::new(tool) as Arc<dyn Tool>)
        });
        EngineParts {
            catalog: Arc::new(catalog),
            ..parts
        }
    }

    /// Gives the tool a definition that it never had before. With `denied`, the calls of the
    /// changed tool are refused. Otherwise, they are held.
    pub fn change(&self, denied: bool) {
        let mut state = self.state();
        let definition = format!("{CHANGED}{}", state.definitions.len());
        state.definitions.push(Some(DefinitionChange {
            reason: format!("The server changed this tool: {definition}."),
            definition,
            denied,
        }));
    }

    /// Gives the tool its reviewed definition. Returns whether the tool had another definition.
    pub fn restore(&self) -> bool {
        let mut state = self.state();
        let is_changed = state.definitions.last().unwrap().is_some();
        if is_changed {
            state.definitions.push(None);
        }
        is_changed
    }

    /// Returns for each attempt at the call the definitions under which it may have been made.
    pub fn attempts(&self, call: CallId) -> Vec<Vec<Definition>> {
        self.state()
            .attempts
            .get(&call)
            .cloned()
            .unwrap_or_default()
    }

    fn begins(&self, call: &Invocation) {
        let mut state = self.state();
        let compared = state.compared.remove(&call.task_id);
        let definitions = compared.map_or_else(Vec::new, |compared| {
            let known = &state.definitions[compared..=state.known];
            let known = known.iter().map(Option::as_ref);
            known
                .map(|change| change.map(|change| change.definition.clone()))
                .collect()
        });
        let attempts = state.attempts.entry(call.call_id).or_default();
        attempts.push(definitions);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

/// The tool `refund` of the configuration, with the definition that the server has.
struct Served(Arc<dyn Tool>, Arc<ToolServer>);

#[async_trait]
impl Tool for Served {
    fn spec(&self) -> &ToolSpec {
        self.0.spec()
    }

    fn refusal_reason(&self, arguments: &Value) -> Option<String> {
        self.0.refusal_reason(arguments)
    }

    fn address(&self, arguments: &Value) -> Option<String> {
        self.0.address(arguments)
    }

    fn connects_first(&self) -> bool {
        self.0.connects_first()
    }

    fn slots(&self) -> Option<Arc<Semaphore>> {
        self.0.slots()
    }

    fn definition_change(&self, _: TaskId) -> Option<DefinitionChange> {
        let state = self.1.state();
        state.definitions[state.known].clone()
    }

    fn is_stale(&self, _: Option<StartReason>) -> bool {
        true
    }

    async fn prepare(
        &self,
        start: Option<StartReason>,
        task: TaskId,
        _: &Credentials,
    ) -> Result<(), String> {
        let mut state = self.1.state();
        let present = state.definitions.len() - 1;
        state.known = present;
        if start.is_some() {
            state.compared.insert(task, present);
        }
        Ok(())
    }

    async fn call(&self, call: &Invocation) -> ToolAnswer {
        self.1.begins(call);
        self.0.call(call).await
    }
}
