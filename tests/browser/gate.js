// Tests the page of a call that an agent proposes at a gate. The page says what an approval does, a
// person decides on the page, and the agent gets the answer. Run: node gate.js URL CHROMIUM
// TOOL_PORT
// Environment: see accounts.js.

import assert from "node:assert/strict";
import { AGENT_KEY, ALICE_KEY, as, call, proposed, signIn } from "./accounts.js";
import { shop } from "./shop.js";
import { eventually, inBrowser, main, newPage, ran, send, service, unfold } from "./harness.js";

const WAITS = "The agent waits now.";
const IS_ABSENT = "The agent is not waiting: it must ask again.";
const CONTEXT = "The customer <b>asked</b> for it.";

const byUs = {
  waits: `${WAITS} If you approve, the call runs at once.`,
  absent: `${IS_ABSENT} If you approve, the call runs when the agent asks again, within 2 h.`,
};
const byTheAgent = {
  waits: `${WAITS} If you approve, the agent runs the call itself.`,
  absent: `${IS_ABSENT} If you approve, the agent may run the call itself when it asks again, within 2 h.`,
};
const RISKS = {
  once: "This cannot be undone here.",
  idempotent: "Safe to repeat: a second run changes nothing more.",
  read_only: "Reads only: changes nothing.",
};
const CALLS = [
  { tool: "refund_payment", args: '{"amount": 120, "order":17}', effect: "once", runsHere: true },
  { tool: "label_order", args: '{"order": 18}', effect: "idempotent", runsHere: true },
  { tool: "read_order", args: '{"order": 19}', effect: "read_only", runsHere: true },
  { tool: "deploy", args: '{"version": 7}', effect: "once", runsHere: false },
  { tool: "restart", args: '{"server": 8}', effect: "idempotent", runsHere: false },
  { tool: "read_log", args: '{"server": 9}', effect: "read_only", runsHere: false },
];

// Waits for the open request about a call of this tool at the gate, and returns it.
async function opened(tool) {
  let found;
  await eventually(async () => {
    const { requests } = await call(ALICE_KEY, "GET", "/v1/requests");
    for (const { request_id: id } of requests.filter(({ agent_path: [gate] }) => gate === "desk")) {
      const request = await call(ALICE_KEY, "GET", `/resume/${id}`);
      if (request.tool_calls[0].name === tool) found = request;
    }
    return found;
  }, `a question about ${tool}`);
  return found;
}

async function signedIn(browser, options) {
  const opened = await newPage(browser, options);
  await opened.page.goto(`${service}/sign-in`);
  assert.equal((await signIn(opened.page, ALICE_KEY)).status(), 303);
  return opened;
}

// Proposes a call. `isAwaited` says whether the agent waits for the decision. `answer` returns the
// verdict that the agent gets after the decision. If the agent has gone, `answer` asks again.
async function proposal({ tool, args }, isAwaited) {
  const key = crypto.randomUUID();
  const ask = (wait) => proposed(key, tool, args, { wait, context: CONTEXT });
  if (isAwaited) {
    const verdict = ask(120);
    return { request: await opened(tool), answer: () => verdict };
  }
  const { status, request } = await ask(0);
  assert.equal(status, 202);
  return { request, answer: () => ask(30) };
}

// The page marks the agent's own text as such. Above the buttons, it shows this text and every byte
// of the call.
async function showsTheCall(page, { args, effect, runsHere }, isAwaited) {
  const texts = runsHere ? byUs : byTheAgent;
  assert.equal(await page.locator(".asker").innerText(), isAwaited ? texts.waits : texts.absent);
  assert.equal(await page.locator(".risk").innerText(), RISKS[effect]);
  const said = page.locator("figure.said");
  assert.equal(await said.locator("figcaption").innerText(), "alice’s agent says (unverified)");
  assert.equal(await said.locator("blockquote").innerText(), CONTEXT);
  await unfold(page, "Exact text");
  assert.equal(await page.locator(".raw pre").innerText(), args);
  const [bytes, context, button] = [page.locator(".raw pre"), said, page.locator("#answers button").first()];
  const boxes = await Promise.all([bytes, context, button].map((part) => part.boundingBox()));
  for (const [over, under] of [[0, 1], [1, 2]]) assert.ok(boxes[over].y + boxes[over].height <= boxes[under].y);
}

async function aYesDoesWhatThePageSays(page, proposedCall, isAwaited) {
  const { args, runsHere } = proposedCall;
  const before = ran.length;
  const { request, answer } = await proposal(proposedCall, isAwaited);
  await page.goto(request.url);
  await showsTheCall(page, proposedCall, isAwaited);
  assert.equal((await send(page, page.getByRole("button", { name: "Approve", exact: true }))).status(), 303);
  assert.equal(await page.locator(".asker").count(), 0, "a decided call has nothing to say of the agent");
  if (!isAwaited) assert.equal(ran.length, before, "the call does not start before the agent asks again");
  const verdict = await answer();
  assert.deepEqual([verdict.status, verdict.decision, verdict.by], [200, "allow", ["alice"]]);
  assert.deepEqual(ran.slice(before), runsHere ? [args] : [], "the approved bytes ran once, if they run here");
  assert.equal(verdict.result?.content, runsHere ? '{"done":true}' : undefined);
  assert.equal(verdict.permit?.idempotency_key, runsHere ? undefined : verdict.tool_call_id);
  if (!runsHere) await call(AGENT_KEY, "POST", "/v1/gate/outcomes", { task_id: verdict.task_id, outcome: "succeeded", content: "done" });
  if (isAwaited) await page.locator("#headline", { hasText: "Approved by alice, and it ran." }).waitFor();
}

async function aNoIsTheAgentsAnswer(page) {
  const before = ran.length;
  const { request, answer } = await proposal(CALLS[0], true);
  await page.goto(request.url);
  await page.locator("#decide-reason").fill("the wrong order");
  assert.equal((await send(page, page.locator(".decide button.no"))).status(), 303);
  const verdict = await answer();
  assert.deepEqual([verdict.status, verdict.decision, verdict.reason, verdict.permit], [200, "deny", "the wrong order", null]);
  assert.equal(ran.length, before);
}

// If the rule does not allow edits, the page offers none and the service refuses them.
async function aLockedCallCannotBeChanged(page) {
  const { request } = await proposal({ tool: "restart", args: '{"server": 88}' }, false);
  await page.goto(request.url);
  assert.equal(await page.locator("summary").filter({ hasText: "Change…" }).count(), 1);
  const { request: locked } = await proposal({ tool: "deploy", args: '{"version": 77}' }, false);
  await page.goto(locked.url);
  assert.match(await main(page), /Deploy version 77/);
  assert.equal(await page.locator("summary").filter({ hasText: "Change…" }).count(), 0);
  assert.equal(await page.locator('#answers [name$=".arguments"], #answers [name*=".field."]').count(), 0);
  const [{ tool_call_id: id }] = locked.tool_calls;
  const edit = { decisions: { [id]: { action: "edit", arguments: { version: 78 } } }, digest: locked.digest };
  const refused = await fetch(`${service}/resume/${locked.request_id}`, { method: "POST", headers: as(ALICE_KEY), body: JSON.stringify(edit) });
  assert.equal(refused.status, 422);
  for (const { request_id: id } of [request, locked]) await call(ALICE_KEY, "POST", `/resume/${id}/reject`);
}

// The server of a tool has changed the tool's definition. The page shows the reviewed definition,
// and names the difference.
async function aChangedToolIsShownAsItWasReviewed(page) {
  shop.isChanged = true;
  const { request } = await proposal({ tool: "book_table", args: '{"people": 4}' }, false);
  await page.goto(request.url);
  const text = await main(page);
  assert.match(text, /The server changed this tool since it was locked\.[^]*description, inputSchema/);
  assert.match(await page.locator(".arguments").innerText(), /People/);
  assert.doesNotMatch(text, /Nights|hotel/, "no text of the changed definition");
  await call(ALICE_KEY, "POST", `/resume/${request.request_id}/reject`);
  shop.isChanged = false;
}

await inBrowser(async (browser) => {
  const [live, still] = [await signedIn(browser), await signedIn(browser, { javaScriptEnabled: false })];
  for (const proposedCall of CALLS) await aYesDoesWhatThePageSays(live.page, proposedCall, true);
  for (const { args, ...once } of CALLS.filter(({ effect }) => effect === "once")) {
    await aYesDoesWhatThePageSays(still.page, { ...once, args: args.replace("7", "70") }, false);
  }
  await aNoIsTheAgentsAnswer(still.page);
  await aLockedCallCannotBeChanged(live.page);
  await aChangedToolIsShownAsItWasReviewed(live.page);
  for (const { wrong } of [live, still]) assert.deepEqual(wrong, []);
  console.log("browser: calls at a gate were decided as their pages said");
});
