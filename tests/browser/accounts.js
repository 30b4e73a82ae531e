// People and agents with keys, in a service with accounts. The environment has their keys: Alice and
// Bob are in the group finance, Eve is in no group, the key of Alice's agent may only ask at gates,
// Mute's key may only create tasks, and the key of Ops, an admin, may only read.

import { execFileSync } from "node:child_process";
import { REFUND, ended as endedFor, says, send, service } from "./harness.js";

export const { AGENT_KEY, ALICE_KEY, BOB_KEY, EVE_KEY, MUTE_KEY, OPS_KEY, SEALING_KEY, LINK } = process.env;

export const as = (key) => ({ authorization: `Bearer ${key}`, "content-type": "application/json" });

export async function call(key, method, path, body) {
  const reply = await fetch(service + path, { method, headers: as(key), body: body && JSON.stringify(body) });
  return reply.json();
}

// Creates a task that waits for a person.
export const asked = (input = REFUND, key = ALICE_KEY) => says(input, as(key));

export const ended = (task) => endedFor(task, as(ALICE_KEY));
export const cancel = ({ task }, key = ALICE_KEY) => call(key, "POST", `/v1/tasks/${task.task_id}/cancel`);
export const approve = ({ request }, key = ALICE_KEY) => call(key, "POST", `/resume/${request.request_id}/approve`);

// Proposes a call at the gate. An equal proposal with the same idempotency key is about the same
// call.
export async function proposed(key, tool, args, { wait = 0, context } = {}) {
  const body = JSON.stringify({ gate: "desk", tool, arguments_text: args, context });
  const headers = { ...as(AGENT_KEY), "idempotency-key": key, prefer: `wait=${wait}` };
  const reply = await fetch(`${service}/v1/gate/calls`, { method: "POST", headers, body });
  return { status: reply.status, ...(await reply.json()) };
}

export async function signIn(page, key) {
  await page.locator("#key").fill(key);
  return send(page, page.locator('form[action$="/sign-in"] button'));
}

export const linkTo = ({ request_id: id }, { sealingKey = SEALING_KEY, user = "alice", hours = 72 } = {}) =>
  `${service}/l/${execFileSync("python3", [LINK, sealingKey, "default", user, id, String(hours)]).toString().trim()}`;
