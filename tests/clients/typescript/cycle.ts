// The whole cycle by the generated TypeScript client, against the built-in demonstration: create, Paused, approve, Completed.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Task = components["schemas"]["AgentTask"];
type Status = components["schemas"]["TaskStatus"];

const baseUrl = process.argv[2];
assert(baseUrl, "usage: cycle.js BASE_URL");
const client = createClient<paths>({ baseUrl });

// A POST is answered with a stream, which is text, where one asks for it.
function isTask(task: Task | string | undefined, status: Status): asserts task is Task {
  assert(typeof task === "object", "JSON, not a stream");
  assert.equal(task.status, status, JSON.stringify(task));
}

const created = await client.POST("/v1/tasks", { body: { input: "Please refund 120 for order 17" } });
assert.equal(created.response.status, 201, JSON.stringify(created.error));
isTask(created.data, "Paused");
assert.equal(created.response.headers.get("location")?.endsWith(created.data.task_id), true);

const request = created.data.pending[0];
assert(request, "a paused task has an open request");
assert.equal(request.kind, "approval");
const call = request.tool_calls[0];
assert(call, "an approval shows the call it is about");
assert.equal(typeof call.arguments_text, "string");

const found = await client.GET("/resume/{request_id}", { params: { path: { request_id: request.request_id } } });
assert(typeof found.data === "object", "JSON, not the page for a person");
assert.equal(found.data.status, "pending");

const approval = {
  params: { path: { request_id: request.request_id } },
  body: { reason: "agreed by phone", digest: request.digest },
};
const approved = await client.POST("/resume/{request_id}/approve", approval);
assert.equal(approved.response.status, 200, JSON.stringify(approved.error));
isTask(approved.data, "Completed");
assert(approved.data.output, "a completed task has an output");

const late = await client.POST("/resume/{request_id}/approve", approval);
assert.equal(late.response.status, 409);
assert.equal(late.error?.code, "already_decided");

const journal = await client.GET("/v1/tasks/{task_id}/items", {
  params: { path: { task_id: created.data.task_id }, query: { limit: 200 } },
});
assert(journal.data, JSON.stringify(journal.error));
const ran = journal.data.items.flatMap((item) =>
  item.type === "tool_result" && item.tool_call_id === call.tool_call_id ? [item.outcome] : [],
);
assert.deepEqual(ran, ["succeeded"], "the approved call ran exactly once");

console.log("the TypeScript client created, approved and completed a task");
