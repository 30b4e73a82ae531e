// Runs a whole cycle of the built-in demonstration with the clients openapi-typescript and
// openapi-fetch. One refund is held, read and approved, and another refund is rejected. Both
// refunds are listed, and the journal says which calls ran.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Task = components["schemas"]["AgentTask"];
type Event = components["schemas"]["StreamedEvent"];

const baseUrl = process.argv[2];
assert(baseUrl, "usage: fetch.js BASE_URL");
const client = createClient<paths>({ baseUrl });

async function held(order: number): Promise<Task> {
  const created = await client.POST("/v1/tasks", { body: { input: `Please refund 120 for order ${order}` } });
  assert.equal(created.response.status, 201, JSON.stringify(created.error));
  assert(created.data);
  const task: Task = created.data;
  assert.equal(task.status, "Paused", JSON.stringify(task));
  assert.equal(created.response.headers.get("location")?.endsWith(task.task_id), true);
  return task;
}

const task = await held(17);
const pending = task.pending[0];
assert(pending, "a paused task has an open request");

const found = await client.GET("/resume/{request_id}", { params: { path: { request_id: pending.request_id } } });
assert(found.data, JSON.stringify(found.error));
const request: components["schemas"]["InterventionRequest"] = found.data;
assert.deepEqual([request.status, request.kind, request.can_decide], ["pending", "approval", true]);
const call = request.tool_calls[0];
assert(call, "an approval shows the call it is about");
assert.deepEqual([typeof call.arguments_text, call.truncated], ["string", false]);

const approval = {
  params: { path: { request_id: request.request_id } },
  body: { reason: "agreed by phone", digest: request.digest },
};
const approved = await client.POST("/resume/{request_id}/approve", approval);
assert.equal(approved.response.status, 200, JSON.stringify(approved.error));
assert.equal(approved.data?.status, "Completed", JSON.stringify(approved.data));
assert(approved.data.output, "a completed task has an output");

const late = await client.POST("/resume/{request_id}/approve", approval);
assert.equal(late.response.status, 409);
assert.equal(late.error?.code, "already_decided");

const other = await held(18);
const rejected = await client.POST("/resume/{request_id}", {
  params: { path: { request_id: other.pending[0]?.request_id ?? "" } },
  body: { action: "reject", then: "continue", reason: "wrong order" },
});
assert.equal(rejected.response.status, 200, JSON.stringify(rejected.error));
assert.equal(rejected.data?.status, "Completed", JSON.stringify(rejected.data));

const listed = await client.GET("/v1/tasks", { params: { query: { status: ["Completed"], limit: 200 } } });
const ids = listed.data?.tasks.map((listed) => listed.task_id) ?? [];
assert(ids.includes(task.task_id) && ids.includes(other.task_id), JSON.stringify(listed));

const journal = await client.GET("/v1/tasks/{task_id}/items", {
  params: { path: { task_id: task.task_id }, query: { limit: 200 } },
});
assert(journal.data, JSON.stringify(journal.error));
const ran = journal.data.items.flatMap((item) =>
  item.type === "tool_result" && item.tool_call_id === call.tool_call_id ? [item.outcome] : [],
);
assert.deepEqual(ran, ["succeeded"], "the approved call ran exactly once");

const grants = await client.GET("/v1/grants");
assert.deepEqual(grants.data?.grants, [], "nothing was remembered");

// The member `event` is the discriminator of the type `Event`.
const decided = (event: Event): string | undefined =>
  event.event === "request.decided" ? event.decision.by : event.event === "task.completed" ? event.status : undefined;
const stream = await client.GET("/v1/tasks/{task_id}/events", {
  params: { path: { task_id: task.task_id } },
  parseAs: "text",
});
const data = (stream.data ?? "").split("\n").filter((line) => line.startsWith("data: "));
const told = data.map((line) => decided(JSON.parse(line.slice("data: ".length)) as Event)).filter((one) => one);
assert.deepEqual(told, ["local", "Completed"]);

// A call that the caller runs itself is proposed, held, approved, claimed with the same key, and
// reported.
const proposal = {
  params: { header: { "Idempotency-Key": "fetch-1", Prefer: "wait=0" } },
  body: { gate: "refunds", tool: "deploy", arguments: { version: 17 } },
};
const asked = await client.POST("/v1/gate/calls", proposal);
assert.equal(asked.response.status, 202, JSON.stringify(asked.error));
assert.deepEqual([asked.data?.decision, asked.data?.permit], ["pending", null]);
const question = { path: { request_id: asked.data?.request?.request_id ?? "" } };
const agreed = await client.POST("/resume/{request_id}/approve", { params: question, body: {} });
assert(agreed.response.ok, JSON.stringify(agreed.error));
const claimed = await client.POST("/v1/gate/calls", proposal);
assert.equal(claimed.data?.decision, "allow", JSON.stringify(claimed.error));
assert(claimed.data.permit, "the approved call has a permit");
const outcome = { key: "fetch-1", outcome: "succeeded" as const, content: "deployed" };
const reported = await client.POST("/v1/gate/outcomes", { body: outcome });
assert.deepEqual([reported.data?.state, reported.data?.outcome], ["settled", "succeeded"], JSON.stringify(reported.error));

console.log("openapi-typescript and openapi-fetch: created, approved, rejected, listed, read, proposed and reported");
