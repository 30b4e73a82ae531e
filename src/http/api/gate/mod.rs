//! The operations for agents that run outside this service. An agent proposes a call, reads the
//! call's state, and reports the call's outcome.

pub(crate) mod propose;
pub(crate) mod report;
pub(crate) mod show;
pub(crate) mod waiting;

use crate::engine::gate::{ClaimLimit, GateAnswer, GateCall, GateRefusal, Proposal};
use crate::http::Http;
use crate::http::api::refusal::refusal_problem;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::gate::WireGateCall;
use crate::people::Caller;

pub(crate) const MAX_TOOL_NAME_BYTES: usize = 256;
/// The `Retry-After` for a client that has to wait for people, in seconds. It is longer than the
/// `Retry-After` of `unavailable` (`Problem::new`), because people take longer than an outage.
pub(crate) const PEOPLE_RETRY_SECONDS: u32 = 30;

/// The API by which a call is proposed; a label of the metric `gate_ask`.
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

/// Proposes a call at its gate, waits for the answer, and records the duration in the metric
/// `gate_ask`. The proposal starts an approved call only within `claim_limit`. `None` sets no
/// limit.
///
/// # Errors
/// Fails if the gate refuses the proposal. The duration of a refused proposal is not recorded.
pub(crate) async fn timed_ask(
    http: &Http,
    caller: &Caller,
    proposal: &Proposal,
    surface: GateSurface,
    claim_limit: Option<&ClaimLimit>,
) -> Result<GateAnswer, GateRefusal> {
    let began = http.clock.uptime();
    let asked = http.engine.gates().ask(caller, proposal, claim_limit);
    let answer = asked.await?;
    let seconds = http.clock.uptime().saturating_sub(began).as_secs_f64();
    let (gate, door) = (&answer.call.gate, surface.as_str());
    tracing::info!(target: "holdpoint::metric", metric = "gate_ask", %gate, door, seconds);
    Ok(answer)
}

/// Converts a gate's refusal to a problem. The problems `call_in_hand` and `call_settled` get a
/// member `call`, which is the call as `caller` sees it.
pub(crate) async fn gate_problem(http: &Http, caller: &Caller, refusal: GateRefusal) -> Problem {
    let shown = |call: &GateCall| WireGateCall::from_call(call, caller, &http.settings);
    match refusal {
        // Boxed, because otherwise each HTTP request that waits for a verdict would reserve memory
        // for this conversion in its future.
        GateRefusal::Command(refusal) => Box::pin(refusal_problem(http, caller, refusal)).await,
        GateRefusal::InHand(call) => {
            let end = call.expires_at.map(|end| format!(" until {end}"));
            let end = end.unwrap_or_default();
            let detail = format!("Another runner has the permit of this call{end}.");
            Problem::new(Code::CallInHand, detail).with("call", shown(&call))
        }
        GateRefusal::Settled(call) => {
            let detail = "The call is settled: it takes no report, or has another outcome.";
            Problem::new(Code::CallSettled, detail).with("call", shown(&call))
        }
        GateRefusal::TooManyOpen => {
            let detail = "This user has as many calls waiting at the gate as `max_open` permits.";
            Problem::new(Code::TooMany, detail).retry_after(PEOPLE_RETRY_SECONDS.into())
        }
    }
}
