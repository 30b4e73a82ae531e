// Tests the pages in a real browser. Run: node pages.js URL CHROMIUM TOOL_PORT

import assert from "node:assert/strict";
import { asks, authorizations, cancel, ended, inBrowser, main, newPage, ran, readable, refund, request, send, service, shot, unfold } from "./harness.js";

// One click shows every byte of the arguments, and the last byte stands above the first button.
async function seesEverything(page, request) {
  let text = await main(page);
  for (const call of request.tool_calls) {
    for (const shown of [call.name, call.summary, call.reason, call.target]) assert.ok(text.includes(shown), shown);
    for (const value of Object.values(call.arguments)) assert.ok(text.includes(String(value)), `${value}`);
  }
  await unfold(page, "Exact text");
  await unfold(page, "Details");
  text = await main(page);
  for (const call of request.tool_calls) {
    for (const shown of [call.arguments_text, call.rule, call.digest, call.tool_call_id]) assert.ok(text.includes(shown), shown);
  }
  const last = await page.locator("pre:not(#live *)").last().boundingBox();
  const button = await page.locator("button").first().boundingBox();
  assert.ok(button.y >= last.y + last.height, "the arguments end before the first button");
}

async function approves(browser, javaScriptEnabled) {
  const { task, request: asked } = await refund();
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled });
  await page.goto(asked.url);
  if (javaScriptEnabled) await seesEverything(page, asked);
  await page.locator('form[action$="/approve"] textarea').fill("looks right\nto me");
  assert.equal((await send(page, page.getByRole("button", { name: "Approve", exact: true }))).status(), 303);
  assert.match(await main(page), /Approved by local/);
  assert.equal(await page.locator("button").count(), 0, "nothing is left to decide");
  assert.equal((await ended(task)).status, "Completed");
  assert.equal((await request(asked.request_id)).decision.reason, "looks right\nto me");
  await page.goBack();
  await page.reload();
  assert.equal(await page.locator("button").count(), 0, "going back shows no button either");
  if (!javaScriptEnabled) assert.match(await page.locator("#past").innerText(), /Approved by local[^]*refund_payment: done[^]*The task is completed/);
  await page.goto(asked.approval_url);
  assert.match(await main(page), /This request is decided/);
  assert.equal(await page.locator("button").count(), 0);
  assert.deepEqual(wrong, []);
  await context.close();
}

async function rejects(browser, javaScriptEnabled) {
  const { task, request: asked } = await refund();
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled });
  await page.goto(asked.rejection_url);
  assert.equal(await page.getByRole("button").count(), 1, "one button on this page");
  await page.locator('textarea[name="reason"]').fill("<script>alert(1)</script> wrong customer");
  assert.equal((await send(page, page.getByRole("button"))).status(), 303);
  assert.match(await main(page), /<script>alert\(1\)<\/script> wrong customer/);
  assert.equal((await ended(task)).status, "Canceled");
  assert.deepEqual(wrong, []);
  await context.close();
}

// Without a mouse, Tab reaches the button, the focus is always visible, and the arrow keys choose
// in the list.
async function decidesByKeyboard(browser) {
  const { task, request: asked } = await refund();
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled: true });
  await page.goto(asked.url);
  const focused = () =>
    page.evaluate(() => {
      const { tagName, innerText, name } = document.activeElement;
      return {
        what: ["BUTTON", "SUMMARY"].includes(tagName) ? innerText : name,
        isLink: tagName === "A",
        outline: getComputedStyle(document.activeElement).outlineStyle,
      };
    });
  const passed = [];
  for (let steps = 0; steps < 30 && passed.at(-1) !== "Reject"; steps += 1) {
    if (passed.at(-1) === "Reject in another way…") await page.keyboard.press("Enter");
    await page.keyboard.press("Tab");
    const { what, outline, isLink } = await focused();
    assert.notEqual(outline, "none", `${what} shows that it has the focus`);
    if (isLink) continue;
    if (what === "then") await page.keyboard.press("ArrowDown");
    passed.push(what);
  }
  assert.deepEqual(passed, [
    "Exact text, 25 characters", "reason", "Approve", "Reject and cancel the task",
    "Change…", "Give the result yourself…", "Reject in another way…", "then", "reason", "Reject",
  ]);
  const [answer] = await Promise.all([
    page.waitForResponse((response) => response.request().method() === "POST"),
    page.keyboard.press("Enter"),
  ]);
  assert.equal(answer.status(), 303);
  const decision = (await request(asked.request_id)).decision;
  assert.deepEqual([decision.action, decision.then], ["reject", "continue"]);
  assert.equal((await ended(task)).status, "Completed");
  assert.deepEqual(wrong, []);
  await context.close();
}

// If edited arguments do not fit the schema, the form shows them again with their errors. The
// corrected arguments run.
async function editsWithAMistake(browser, javaScriptEnabled) {
  const { task, request: asked } = await refund();
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled });
  await page.goto(asked.url);
  await unfold(page, "Change…");
  await unfold(page, "As JSON");
  const text = page.locator("textarea[name$='.arguments']");
  assert.equal(await text.inputValue(), '{"order":17,"amount":120}');
  await text.fill('{"order": 17, "amount": -5}');
  const refused = await send(page, page.getByRole("button", { name: "Approve with these changes" }));
  assert.equal(refused.status(), 422);
  assert.match(await page.title(), /^Error: /);
  assert.equal(await text.inputValue(), '{"order": 17, "amount": -5}', "what was typed is kept");
  const alert = page.getByRole("alert");
  assert.match(await alert.innerText(), /\/amount/);
  assert.equal(await text.getAttribute("aria-invalid"), "true");
  if (javaScriptEnabled) {
    await readable(page, "the page with a mistake");
    await shot(page, "mistake");
    await alert.getByRole("link").click();
    assert.ok(await text.evaluate((text) => text === document.activeElement || location.hash === `#${text.id}`));
  }
  await text.fill('{"order": 17,\n "amount": 20.10}');
  const before = ran.length;
  assert.equal((await send(page, page.getByRole("button", { name: "Approve with these changes" }))).status(), 303);
  assert.match(await main(page), /Changed and approved by local[^]*"amount":20\.10/);
  assert.equal((await ended(task)).status, "Completed");
  assert.deepEqual(ran.slice(before), ['{"order":17,"amount":20.10}'], "the bytes that were typed are what ran");
  assert.deepEqual(wrong, []);
  await context.close();
}

// Each of several calls gets its own answer. A call without an answer stays open.
async function decidesEachCall(browser, javaScriptEnabled) {
  const { task, request: asked } = await asks("refund_payment", ...[1, 2, 3, 4].map((order) => `{"order":${order},"amount":30}`));
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled });
  await page.goto(asked.url);
  const sent = page.getByRole("button", { name: "Send only these decisions" });
  const call = (number) => page.getByRole("group", { name: `Call ${number} ` });
  await unfold(page, "Decide each call");
  assert.equal((await send(page, sent)).status(), 422, "nothing chosen is no answer");
  assert.match(await main(page), /at least one answer/);
  await call(1).getByLabel("Approve").check();
  await call(2).getByLabel("Reject").check();
  await call(2).getByLabel("Comment").fill("not this one");
  await call(3).getByLabel("Give the result yourself").check();
  if (javaScriptEnabled) {
    assert.ok(!(await call(1).locator("textarea[name$='.arguments']").isVisible()), "only what is chosen is in the way");
    await readable(page, "several calls");
  }
  await call(3).getByLabel("Result", { exact: true }).fill("paid by hand");
  await page.locator("form:has(fieldset) select[name='then']").selectOption("continue");
  assert.equal((await send(page, sent)).status(), 303);
  const half = await request(asked.request_id);
  assert.equal(half.status, "pending");
  assert.deepEqual(half.tool_calls.map((call) => call.decision?.action ?? null), ["approve", "reject", "respond", null]);
  assert.equal(await page.locator("fieldset").count(), 0, "one call is left");
  assert.equal(await page.getByRole("button", { name: "Approve the other call" }).count(), 1);
  const before = ran.length;
  await unfold(page, "Change…");
  await unfold(page, "As JSON");
  await page.locator("textarea[name$='.arguments']").fill('{"order":4,"amount":1.50}');
  assert.equal((await send(page, page.getByRole("button", { name: "Approve with these changes" }))).status(), 303);
  assert.match(await main(page), /Calls were decided differently/);
  assert.equal((await ended(task)).status, "Completed");
  assert.deepEqual(ran.slice(before), ['{"order":1,"amount":30}', '{"order":4,"amount":1.50}']);
  assert.deepEqual(wrong, []);
  await context.close();
}

// The headline and the tab's title name the decision and the outcome of the call.
async function saysWhatBecameOfIt(browser, javaScriptEnabled, locale) {
  const words = {
    "en-US": { failed: "Approved by local, but it failed: 500.", canceled: "Rejected by local. The task was canceled." },
    "zh-CN": { failed: "local 已批准，但执行失败：500。", canceled: "local 已拒绝，任务已取消。" },
  }[locale];
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled, locale });
  const tells = async (headline, heading) => {
    if (javaScriptEnabled) await page.locator("#headline", { hasText: headline }).waitFor();
    assert.equal(await page.locator("#headline").textContent(), headline);
    assert.equal(await page.locator("h1").textContent(), heading);
    assert.equal(await page.title(), `${headline} · ${heading} · Holdpoint`);
  };
  const fails = await asks("fail", '{"order":"1/2"}');
  await page.goto(fails.request.url);
  assert.ok(!(await page.locator("#headline").isVisible()), "nothing is said of an outcome yet");
  assert.equal(await page.title(), "Fail 1/2 · Holdpoint");
  assert.match(await main(page), /POST http:\/\/127\.0\.0\.1:\d+\/fail\/1%2F2\s/);
  assert.equal((await send(page, page.locator('.decide button:not(.no)'))).status(), 303);
  assert.equal((await ended(fails.task)).status, "Completed");
  if (!javaScriptEnabled) await page.reload();
  await tells(words.failed, "Fail 1/2");
  const canceled = await refund();
  await page.goto(canceled.request.url);
  assert.equal((await send(page, page.locator('.decide button.no'))).status(), 303);
  await tells(words.canceled, "Refund 120 for order 17");
  if (javaScriptEnabled) await readable(page, `what became of it, ${locale}`);
  await shot(page, `became-${locale}`);
  assert.deepEqual(wrong, []);
  await context.close();
}

async function answersGuidance(browser, javaScriptEnabled) {
  const form = {
    type: "object",
    properties: { order: { type: "integer", title: "Order", description: "Its number" }, how: { enum: ["cash", "card"] } },
    required: ["order", "how"],
  };
  const question = { question: "Which <b>order</b> is meant?", context: "Two match.", form };
  const { task, request: asked } = await asks("request_human_guidance", JSON.stringify(question));
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled });
  await page.goto(asked.url);
  const box = page.locator("div.agent:not(#live *)").filter({ hasText: "Written by the agent, not verified" });
  assert.match(await box.innerText(), /Which <b>order<\/b> is meant\?[^]*Two match\./);
  assert.match(await main(page), /The agent reads your answer\. It approves no call\./);
  await page.getByLabel("Order").fill("18");
  await page.getByLabel("how").selectOption("card");
  assert.equal((await send(page, page.getByRole("button", { name: "Send the answer" }))).status(), 303);
  assert.deepEqual((await request(asked.request_id)).decision.response, { order: 18, how: "card" });
  assert.equal((await ended(task)).status, "Completed");
  assert.deepEqual(wrong, []);
  await context.close();
}

async function answersTheOthers(browser) {
  const { context, page, wrong } = await newPage(browser);
  const plain = await asks("request_human_guidance", '{"question":"What now?","options":["wait","go on"]}');
  await page.goto(plain.request.url);
  await page.getByLabel("answer").fill("go on");
  assert.equal((await send(page, page.getByRole("button", { name: "Send the answer" }))).status(), 303);
  assert.deepEqual((await request(plain.request.request_id)).decision.response, { answer: "go on" });

  const confirms = await asks("request_confirmation", '{"action":"Close it.","risks":["It may be reopened."]}');
  await page.goto(confirms.request.url);
  assert.equal(await page.locator("#answers button").count(), 2, "one yes and one no");
  assert.ok(!/Effect|read only/.test(await main(page)), "no call runs, and none is shown");
  await page.getByLabel("Comment").fill("not yet");
  assert.equal((await send(page, page.getByRole("button", { name: "No", exact: true }))).status(), 303);
  await page.locator("#headline", { hasText: "Answered with “no” by local. The agent was told." }).waitFor();
  assert.deepEqual((await request(confirms.request.request_id)).decision.response, { confirmed: false, comment: "not yet" });

  const stops = await asks("request_confirmation", '{"action":"Close it."}');
  await page.goto(stops.request.url);
  await page.getByLabel("Comment").fill("stop it");
  await page.getByLabel("After a no").selectOption("cancel");
  assert.equal((await send(page, page.getByRole("button", { name: "Yes, confirmed" }))).status(), 422);
  assert.equal(await page.getByLabel("Comment").inputValue(), "stop it");
  assert.equal((await send(page, page.getByRole("button", { name: "No", exact: true }))).status(), 303);
  assert.equal((await ended(stops.task)).status, "Canceled");
  assert.equal((await request(stops.request.request_id)).decision.reason, "stop it");

  const counts = await asks("count_orders", '{"customer":4}');
  await page.goto(counts.request.url);
  await page.getByLabel("orders").fill("3");
  await page.getByLabel("sure").selectOption("true");
  await page.getByLabel("since").fill("2026-01-02");
  assert.equal((await send(page, page.getByRole("button", { name: "Send the result" }))).status(), 303);
  assert.deepEqual((await request(counts.request.request_id)).decision.result, { orders: 3, since: "2026-01-02", sure: true });

  const looks = await asks("look_up", '{"what":"it"}');
  await page.goto(looks.request.url);
  await page.getByLabel("Result", { exact: true }).fill('{"a": [1.50');
  await page.getByLabel("The result is").selectOption("json");
  assert.equal((await send(page, page.getByRole("button", { name: "Send the result" }))).status(), 422);
  assert.equal(await page.getByLabel("Result", { exact: true }).inputValue(), '{"a": [1.50');
  await page.getByLabel("Result", { exact: true }).fill('{"a": [1.50]}');
  assert.equal((await send(page, page.getByRole("button", { name: "Send the result" }))).status(), 303);
  assert.equal((await ended(looks.task)).status, "Completed");

  const lost = await asks("lose", '{"order":1}');
  assert.equal(lost.request.kind, "reconcile");
  await page.goto(lost.request.url);
  assert.match(await main(page), /Known facts[^]*Attempt/);
  await page.getByLabel("Result", { exact: true }).fill("it happened");
  assert.equal((await send(page, page.getByRole("button", { name: "This is its result" }))).status(), 303);
  assert.match((await ended(lost.task)).output, /it happened/);
  assert.deepEqual(wrong, []);
  await context.close();
}

// A login is sealed for the named tools and never shown again, even if the service refuses the
// login.
async function givesALogin(browser) {
  const { task, request: asked } = await asks("comment_ticket", '{"text":"hello"}');
  assert.equal(asked.kind, "credentials");
  const { context, page, wrong } = await newPage(browser);
  await page.goto(asked.url);
  assert.match(await main(page), /It is sealed[^]*comment_ticket: POST http[^]*deleted after 8 h/);
  assert.equal(await page.locator('input[type="password"]').count(), 2);
  await page.getByLabel("email").fill("no address of a mailbox");
  await page.getByLabel("token").fill("token-that-nobody-may-see");
  const refused = await send(page, page.getByRole("button", { name: "Seal and submit" }));
  assert.equal(refused.status(), 422);
  const again = await page.content();
  assert.ok(!again.includes("token-that-nobody-may-see") && !again.includes("no address of a mailbox"));
  assert.match(await main(page), /your input was not kept/);
  await readable(page, "a login that does not fit");
  await shot(page, "login");
  await page.getByLabel("email").fill("me@acme.example");
  await page.getByLabel("token").fill("token-that-nobody-may-see");
  assert.equal((await send(page, page.getByRole("button", { name: "Seal and submit" }))).status(), 303);
  assert.equal((await ended(task)).status, "Completed");
  assert.equal(authorizations.at(-1), "Bearer token-that-nobody-may-see");
  await page.reload();
  assert.ok(!(await page.content()).includes("token-that-nobody-may-see"));
  assert.deepEqual(wrong, []);
  await context.close();
}

// Opens a page that gets no live updates.
async function deafPage(browser) {
  const opened = await newPage(browser);
  await opened.context.route("**/follow.js", (route) => route.fulfill({ contentType: "text/javascript", body: "" }));
  return opened;
}

// Two people have the same page open. The second to answer is told that the answer comes too late.
async function comesTooLate(browser) {
  const { request: asked } = await refund();
  const { context, page } = await deafPage(browser);
  await page.goto(asked.url);
  const first = await fetch(`${service}/resume/${asked.request_id}/reject`, { method: "POST" });
  assert.equal(first.status, 200);
  const answer = await send(page, page.getByRole("button", { name: "Approve", exact: true }));
  assert.equal(answer.status(), 409);
  assert.match(answer.headers()["content-type"], /^text\/html/);
  assert.match(await main(page), /The first decision counts: local rejected at /);
  assert.ok(!/already_decided/.test(await main(page)), "names of the API are folded");
  await unfold(page, "For support");
  assert.match(await main(page), /already_decided/);
  await readable(page, "too late");
  await page.getByRole("link", { name: "Back to the request" }).click();
  await page.waitForURL(asked.url);
  await context.close();
}

// A page that no longer shows the current request cannot answer the request.
async function showsSomethingElse(browser) {
  const { task, request: asked } = await refund();
  const { context, page } = await deafPage(browser);
  await page.goto(asked.url);
  for (const digest of await page.locator('input[name="digest"]').all()) {
    await digest.evaluate((input) => (input.value = "sha256:0"));
  }
  assert.equal((await send(page, page.getByRole("button", { name: "Approve", exact: true }))).status(), 412);
  assert.match(await main(page), /The request has changed since this page was shown/);
  await page.getByRole("link", { name: "Back to the request" }).click();
  await page.waitForURL(asked.url);
  assert.equal((await request(asked.request_id)).status, "pending");
  await cancel(task);
  assert.equal((await send(page, page.getByRole("button", { name: "Approve", exact: true }))).status(), 409, "withdrawn meanwhile");
  await context.close();
}

// A page of another site can neither send the service's form nor frame the service's page.
async function anotherSiteCannot(browser) {
  const { task, request: asked } = await refund();
  const { context, page } = await newPage(browser);
  const foreign = "http://evil.localhost:9/";
  await page.route(`${foreign}**`, (route) =>
    route.fulfill({
      contentType: "text/html",
      body: `<iframe src="${asked.url}"></iframe><form method="post" action="${asked.approval_url}"><button>Win a prize</button></form>`,
    }),
  );
  await page.goto(foreign);
  const framed = page.frames().find((frame) => frame !== page.mainFrame());
  assert.equal(await framed?.locator("button").count(), 0, "the page cannot be framed");
  const answer = await send(page, page.getByRole("button", { name: "Win a prize" }));
  assert.equal(answer.status(), 403);
  assert.equal((await request(asked.request_id)).status, "pending");
  await cancel(task);
  await context.close();
}

async function otherPagesLoad(browser) {
  const { context, page, wrong } = await newPage(browser);
  await page.goto(`${service}/problems/digest_mismatch`);
  assert.match(await main(page), /What to do/);
  await readable(page, "a problem's page");
  await page.goto(`${service}/docs`);
  await page.getByText("/resume/{request_id}", { exact: true }).first().waitFor();
  assert.deepEqual(wrong, []);
  await context.close();
}

await inBrowser(async (browser) => {
  for (const javaScript of [true, false]) {
    await approves(browser, javaScript);
    await rejects(browser, javaScript);
    await editsWithAMistake(browser, javaScript);
    await decidesEachCall(browser, javaScript);
    await answersGuidance(browser, javaScript);
    await saysWhatBecameOfIt(browser, javaScript, "en-US");
    await saysWhatBecameOfIt(browser, javaScript, "zh-CN");
  }
  await decidesByKeyboard(browser);
  await answersTheOthers(browser);
  await givesALogin(browser);
  await comesTooLate(browser);
  await showsSomethingElse(browser);
  await anotherSiteCannot(browser);
  await otherPagesLoad(browser);
  console.log("browser: all pages did as they should");
});
