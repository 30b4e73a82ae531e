//! Calls of agents that run elsewhere: propose, look, report.

pub(crate) mod look;
pub(crate) mod propose;
pub(crate) mod report;
pub(crate) mod waiting;

use tokio::time::Instant;
use utoipa_axum::routes;

use crate::engine::gate::{GateAnswer, GateRefusal, Proposal};
use crate::http::api::refusal::refusal_problem;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::gate::GateCall;
use crate::http::{Http, Operation};
use crate::people::Caller;

/// Returns the operations of gates, each with its route.
pub(crate) fn operations() -> Vec<Operation> {
    vec![
        (&propose::OP, routes!(propose::propose_gate_call)),
        (&look::OP, routes!(look::get_gate_call)),
        (&report::OP, routes!(report::report_gate_outcome)),
    ]
}

/// The surface by which a call is proposed: a label of metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GateSurface {
    Rest,
    Mcp,
    ExtAuthz,
    ExtMcp,
}

impl GateSurface {
    fn as_str(self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::Mcp => "mcp",
            Self::ExtAuthz => "ext_authz",
            Self::ExtMcp => "ext_mcp",
        }
    }
}

/// Proposes a call at its gate and waits for the answer. Starts no approved call after
/// `claim_until`, if it is set. Records the duration, unless the gate refuses.
pub(crate) async fn timed_ask(
    http: &Http,
    caller: &Caller,
    proposal: &Proposal,
    surface: GateSurface,
    claim_until: Option<Instant>,
) -> Result<GateAnswer, GateRefusal> {
    let began = http.clock.uptime();
    let asked = http.engine.ask_until(caller, proposal, claim_until);
    let answer = asked.await?;
    let seconds = http.clock.uptime().saturating_sub(began).as_secs_f64();
    let (gate, door) = (&answer.call.gate, surface.as_str());
    tracing::info!(target: "holdpoint::metric", metric = "gate_ask", %gate, door, seconds);
    Ok(answer)
}

/// Converts a gate's refusal to a problem, with the call as `caller` sees it if the refusal is
/// about a stored call.
pub(crate) async fn gate_problem(http: &Http, caller: &Caller, refusal: GateRefusal) -> Problem {
    match refusal {
        GateRefusal::Command(refusal) => refusal_problem(http, caller, refusal).await,
        GateRefusal::InHand(call) => Problem::new(
            Code::CallInHand,
            "Another runner has the permit of this call.",
        )
        .with("call", GateCall::from_call(&call, caller, &http.settings)),
        GateRefusal::Settled(call) => Problem::new(
            Code::CallSettled,
            "The call already has a different outcome.",
        )
        .with("call", GateCall::from_call(&call, caller, &http.settings)),
        GateRefusal::TooManyOpen => Problem::new(
            Code::TooMany,
            "This user has as many calls waiting at the gate as `max_open` permits.",
        ),
    }
}
