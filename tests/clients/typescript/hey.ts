// Runs a whole cycle of the built-in demonstration with the client @hey-api/openapi-ts. One refund
// is held, read and approved, and another refund is rejected. Both refunds are listed, and the
// journal and the stream say which calls ran.
import assert from "node:assert/strict";
import { client } from "./hey/client.gen.js";
import * as api from "./hey/sdk.gen.js";
import type { AgentTask, InterventionRequest, StreamedEvent } from "./hey/types.gen.js";

const baseUrl = process.argv[2];
assert(baseUrl, "usage: hey.js BASE_URL");
client.setConfig({ baseUrl });

async function held(order: number): Promise<AgentTask> {
  const created = await api.createTask({ body: { input: `Please refund 120 for order ${order}` } });
  assert(created.data, JSON.stringify(created.error));
  assert.equal(created.response?.status, 201);
  const task: AgentTask = created.data;
  assert.equal(task.status, "Paused", JSON.stringify(task));
  return task;
}

const task = await held(27);
const pending = task.pending[0];
assert(pending, "a paused task has an open request");

const path = { request_id: pending.request_id };
const found = await api.getRequest({ path });
assert(found.data, JSON.stringify(found.error));
const request: InterventionRequest = found.data;
assert.deepEqual([request.status, request.kind, request.can_decide], ["pending", "approval", true]);
const call = request.tool_calls[0];
assert(call, "an approval shows the call it is about");

const approved = await api.approveRequest({ path, body: { reason: "agreed by phone", digest: request.digest } });
assert(approved.data, JSON.stringify(approved.error));
assert.equal(approved.data.status, "Completed");
assert(approved.data.output, "a completed task has an output");

const late = await api.approveRequest({ path, body: { digest: request.digest } });
assert.equal(late.error?.code, "already_decided");
assert.equal(late.error.decision?.by, "local");

const other = await held(28);
const rejected = await api.decideRequest({
  path: { request_id: other.pending[0]?.request_id ?? "" },
  body: { action: "reject", then: "continue", reason: "wrong order" },
});
assert.equal(rejected.data?.status, "Completed", JSON.stringify(rejected.error));

const listed = await api.listTasks({ query: { status: ["Completed"], limit: 200 } });
const ids = listed.data?.tasks.map((listed) => listed.task_id) ?? [];
assert(ids.includes(task.task_id) && ids.includes(other.task_id), JSON.stringify(listed.error));

const journal = await api.listTaskItems({ path: { task_id: task.task_id }, query: { limit: 200 } });
assert(journal.data, JSON.stringify(journal.error));
const ran = journal.data.items.flatMap((item) =>
  item.type === "tool_result" && item.tool_call_id === call.tool_call_id ? [item.outcome] : [],
);
assert.deepEqual(ran, ["succeeded"], "the approved call ran exactly once");

// The member `event` is the discriminator of the type `StreamedEvent`.
const told: unknown[] = [];
const { stream } = await api.streamTaskEvents({ path: { task_id: task.task_id } });
for await (const data of stream) {
  const event = data as unknown as StreamedEvent;
  if (event.event === "request.decided") told.push(event.decision.by);
  if (event.event === "task.completed") {
    told.push(event.status);
    break;
  }
}
assert.deepEqual(told, ["local", "Completed"]);

// A call that the caller runs itself is proposed, held, approved, claimed with the same key, and
// reported.
const proposal = {
  headers: { "Idempotency-Key": "hey-1", Prefer: "wait=0" },
  body: { gate: "refunds", tool: "deploy", arguments: { version: 27 } },
};
const asked = await api.proposeGateCall(proposal);
assert.equal(asked.response?.status, 202, JSON.stringify(asked.error));
assert.deepEqual([asked.data?.decision, asked.data?.permit], ["pending", null]);
const question = { request_id: asked.data?.request?.request_id ?? "" };
const agreed = await api.approveRequest({ path: question, body: {} });
assert(agreed.data, JSON.stringify(agreed.error));
const claimed = await api.proposeGateCall(proposal);
assert.equal(claimed.data?.decision, "allow", JSON.stringify(claimed.error));
assert(claimed.data.permit, "the approved call has a permit");
const outcome = { key: "hey-1", outcome: "succeeded" as const, content: "deployed" };
const reported = await api.reportGateOutcome({ body: outcome });
assert.deepEqual([reported.data?.state, reported.data?.outcome], ["settled", "succeeded"], JSON.stringify(reported.error));

console.log("@hey-api/openapi-ts: created, approved, rejected, listed, read, watched, proposed and reported");
