// The pages in a real browser: node pages.js URL CHROMIUM TOOL_PORT

import assert from "node:assert/strict";
import { chromium } from "playwright-core";
import * as world from "./world.js";
import { asks, authorizations, cancel, drawn, ended, executablePath, fits, main, newPage, ran, readable, refund, request, says, send, service, shot } from "./world.js";

// Unfolds the part of the page with this summary.
const unfold = (page, summary) => page.locator("summary").filter({ hasText: summary }).click();

// One click shows every byte; the last one stands above the first button.
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

// A question as a manager gets it: what decides it is in view without scrolling, the bytes end above the buttons.
async function decidesFromTheFirstScreen(browser) {
  const words = "Please refund 120 euros for order 17: the parcel came broken, and the customer has waited for two weeks.";
  const { task, request: asked } = await says(words);
  for (const [width, height] of [[1280, 800], [390, 844]]) {
    for (const colorScheme of ["light", "dark"]) {
      const { context, page, wrong } = await newPage(browser, { viewport: { width, height }, colorScheme, timezoneId: "Europe/Berlin" });
      await page.goto(asked.url);
      assert.equal(await page.title(), "Refund 120 for order 17 · Holdpoint");
      assert.match(await page.locator(".kicker").innerText(), /^worker asks · local’s task · 23 h left$/);
      const parts = ["h1", ".why", ".said blockquote", ".arguments", ".raw summary", ".risk", "#decide-reason"];
      const buttons = ["Approve", "Reject and cancel the task"].map((name) => page.getByRole("button", { name }));
      let end = 0;
      for (const part of [...parts.map((part) => page.locator(part).first()), ...buttons]) {
        const box = await part.boundingBox();
        assert.ok(box.y >= end || part === buttons[1], `${part} stands below the part before it`);
        assert.ok(box.y + box.height <= height, `${part} is in view at ${width} × ${height}`);
        if (part !== buttons[0]) end = box.y + box.height;
      }
      assert.match(await page.locator(".said blockquote").innerText(), /two weeks/);
      assert.match(await page.locator(".arguments").innerText(), /Order\s+17\s+Amount\s+In euros\.\s+120/);
      await unfold(page, "Details");
      const time = page.locator(".details time").first();
      const [utc, shown] = [await time.getAttribute("title"), await time.innerText()];
      assert.match(utc, /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$/);
      assert.ok(shown.includes(`(${utc.slice(11, 16)} UTC)`) || shown.includes(`${utc.slice(11, 16)} UTC)`), `${shown}: ${utc}`);
      assert.ok(!shown.startsWith(utc.slice(11, 16)), `${shown} is in the reader's zone`);
      await readable(page, `first screen ${width} ${colorScheme}`);
      assert.deepEqual(wrong, []);
      await context.close();
    }
  }
  await cancel(task);
}

// On a phone the buttons stay in view while their form is, and are never in view above the end of the arguments.
async function buttonsStayBelowTheArguments(browser) {
  const { task, request: asked } = await asks("write_note", JSON.stringify({ text: "word ".repeat(700) }));
  const { context, page, wrong } = await newPage(browser, { viewport: { width: 390, height: 844 } });
  await page.goto(asked.url);
  const approve = page.getByRole("button", { name: "Approve", exact: true });
  const box = () => approve.boundingBox();
  assert.ok((await box()).y > 844, "a long text is read first");
  const arguments_ = page.locator("details.raw").first();
  for (let at = 0; (await box()).y > 800; at += 200) {
    await page.evaluate((at) => window.scrollTo(0, at), at);
    const last = await arguments_.boundingBox();
    assert.ok((await box()).y >= last.y + last.height, "the buttons stand below the bytes");
  }
  await page.evaluate(() => document.querySelector(".decide label").scrollIntoView({ block: "end" }));
  assert.ok((await box()).y < 844, "and stick to the window once their form is in view");
  assert.deepEqual(wrong, []);
  await cancel(task);
  await context.close();
}

// The arguments changed in fields drawn from the schema.
async function changesInFields(browser, javaScriptEnabled) {
  const { task, request: asked } = await refund();
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled });
  await page.goto(asked.url);
  await unfold(page, "Change…");
  assert.equal(await page.getByLabel("Order").inputValue(), "17");
  await page.getByLabel("Amount").fill("-5");
  const approve = page.getByRole("button", { name: "Approve with these changes" });
  assert.equal((await send(page, approve)).status(), 422);
  assert.equal(await page.getByLabel("Amount").inputValue(), "-5");
  assert.equal(await page.getByLabel("Amount").getAttribute("aria-invalid"), "true");
  if (javaScriptEnabled) await readable(page, "a field with a mistake");
  await page.getByLabel("Amount").fill("20.10");
  const before = ran.length;
  assert.equal((await send(page, approve)).status(), 303);
  assert.match(await main(page), /Changed and approved by local/);
  assert.equal((await ended(task)).status, "Completed");
  assert.deepEqual(ran.slice(before), ['{"order":17,"amount":20.10}']);
  assert.deepEqual(wrong, []);
  await context.close();
}

// Eight calls: one table with a sum; one is rejected, the rest is approved with one button.
async function decidesEight(browser, javaScriptEnabled) {
  const { task, request: asked } = await says("Eight parcels came broken.");
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled, viewport: { width: 1280, height: 800 } });
  await page.goto(asked.url);
  assert.equal(await page.title(), "Refund 20.1 for order 101, and 7 more · Holdpoint");
  assert.match(await page.locator(".calls tfoot").innerText(), /^Sum\s+349\.84\s*$/);
  assert.equal(await page.locator(".calls tbody tr").count(), 8);
  assert.equal(await page.getByRole("button", { name: "Approve all 8" }).count(), 1);
  await unfold(page, "Exact text of each call");
  const text = await main(page);
  for (const call of asked.tool_calls) assert.ok(text.includes(call.arguments_text), call.arguments_text);
  await unfold(page, "Decide each call");
  await page.getByRole("group", { name: "Call 3" }).getByLabel("Reject").check();
  if (javaScriptEnabled) await readable(page, "eight calls");
  const before = ran.length;
  assert.equal((await send(page, page.getByRole("button", { name: "Send these, and approve the rest" }))).status(), 303);
  const decided = await request(asked.request_id);
  assert.deepEqual(decided.tool_calls.map((call) => call.decision.action), Array(8).fill("approve").with(2, "reject"));
  assert.equal((await ended(task)).status, "Completed");
  assert.equal(ran.length - before, 7);
  assert.deepEqual(wrong, []);
  await context.close();
}

// A call beside the one to decide looks different; a command looks like one; warnings stand above the buttons.
async function showsWhatWeighs(browser) {
  const { context, page, wrong } = await newPage(browser);
  const beside = await says("Beside the refund, look it up.");
  await page.goto(beside.request.url);
  assert.match(await page.locator(".context").innerText(), /Shown for context, not for you to decide\s+lose allowed by a rule/);
  assert.equal(await page.locator(".context button, .context table").count(), 0);
  await readable(page, "a call beside");
  const shell = await asks("clean_up", '{"command":"rm -rf /var/tmp/reports"}');
  await page.goto(shell.request.url);
  assert.equal(await page.locator("pre.shell").innerText(), "rm -rf /var/tmp/reports");
  assert.match(await main(page), /Runs this command on the server\.\s+This cannot be undone here\./);
  await readable(page, "a command");
  const odd = await asks("write_note", '{"text":"pay \u202ebob"}');
  await page.goto(odd.request.url);
  const [warning, first] = [page.locator(".warnings"), page.locator("button").first()];
  const [over, under] = [await warning.boundingBox(), await first.boundingBox()];
  assert.ok(over.y + over.height <= under.y, "the warning stands above the first button");
  assert.ok(await page.locator(".raw pre").isVisible(), "with a warning the exact text is open");
  await readable(page, "a warning");
  assert.deepEqual(wrong, []);
  for (const { task } of [beside, shell, odd]) await cancel(task);
  await context.close();
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

// Without a mouse: Tab to the button, with a visible focus; the list by its arrow keys.
async function decidesByKeyboard(browser) {
  const { task, request: asked } = await refund();
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled: true });
  await page.goto(asked.url);
  const focused = () =>
    page.evaluate(() => {
      const { tagName, innerText, name } = document.activeElement;
      return { what: ["BUTTON", "SUMMARY"].includes(tagName) ? innerText : name, outline: getComputedStyle(document.activeElement).outlineStyle };
    });
  const passed = [];
  for (let steps = 0; steps < 30 && passed.at(-1) !== "Reject"; steps += 1) {
    if (passed.at(-1) === "Reject in another way…") await page.keyboard.press("Enter");
    await page.keyboard.press("Tab");
    const { what, outline } = await focused();
    assert.notEqual(outline, "none", `${what} shows that it has the focus`);
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

// Other arguments that do not fit come back with their mistakes; corrected, they run.
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

// Several calls, each with its own answer; an undecided call stays open.
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
  assert.equal(await page.getByRole("button", { name: "Approve the other 1" }).count(), 1);
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

// An agent's text stays text: it runs nothing, moves nothing, hides nothing, and pushes nothing out of the window.
async function hostileTextStaysText(browser) {
  const hostile = `</pre></textarea><script>alert(1)</script><img src=x onerror=alert(2)>\u202e${"<b>&amp;".repeat(12_000)}${"x".repeat(9_000)}END`;
  const args = JSON.stringify({ text: hostile });
  const { task, request: asked } = await asks("write_note", args);
  for (const width of [320, 1280]) {
    const { context, page, wrong } = await newPage(browser, { viewport: { width, height: 800 } });
    await page.goto(asked.url);
    const shown = await page.locator("div.agent:not(#live *) .raw pre").last().evaluate((pre) => pre.textContent);
    assert.equal(shown, args.replace("\u202e", "\\u{202e}"), "every byte");
    assert.equal(await page.locator("script:not([src='/follow.js']), main img, main b").count(), 0, "nothing is markup");
    await fits(page, `hostile at ${width}`);
    const edited = await page.locator("textarea[name$='.arguments']").inputValue();
    assert.equal(edited, args.replace("\u202e", "\\u202e"), "and the editor hides none of them");
    assert.deepEqual(wrong, []);
    await context.close();
  }
  await cancel(task);
}

// Right-to-left letters move no digit: the drawn order is the written order, character by character.
const MOVED = '["from-\u05d0","100","200","\u05d1-to"]';

async function drawsTheOrderOfTheCharacters(browser) {
  const { context, page, wrong } = await newPage(browser, { viewport: { width: 1280, height: 900 } });
  const inOrder = async (locator, text, what) => {
    const element = await locator.elementHandle();
    assert.ok((await element.textContent()).includes(text), what);
    assert.ok((await drawn(element)).includes(text), `${what}: ${await drawn(element)}`);
    await element.evaluate((node) => node.classList.remove("exact"));
    assert.ok(!(await drawn(element)).includes(text), `${what} is in order by the class alone`);
    await element.evaluate((node) => node.classList.add("exact"));
  };
  const note = await asks("write_note", `{"text":${JSON.stringify(MOVED)}}`);
  const written = JSON.stringify(MOVED);
  await page.goto(note.request.url);
  await inOrder(page.locator(".raw pre").first(), written, "the arguments");
  await inOrder(page.locator(".arguments .value").first(), written, "the arguments in the table");
  await inOrder(page.locator("h1"), MOVED, "the summary");
  await unfold(page, "Change…");
  await unfold(page, "As JSON");
  const typed = page.locator("textarea[name$='.arguments']");
  const style = await typed.evaluate((element) => [getComputedStyle(element).unicodeBidi, getComputedStyle(element).direction]);
  assert.deepEqual(style, ["bidi-override", "ltr"]);
  // A text field has no ranges: its text is drawn beside it, in the same style.
  await typed.evaluate((element) => {
    const beside = document.createElement("pre");
    beside.id = "beside";
    beside.className = element.className;
    beside.textContent = element.value;
    element.after(beside);
  });
  await inOrder(page.locator("#beside"), written, "the text that is changed");
  const edited = page.locator("form", { has: typed });
  await edited.locator("#beside").evaluate((element) => element.remove());
  await typed.fill(`{"text": ${written}}`);
  assert.equal((await send(page, page.getByRole("button", { name: "Approve with these changes" }))).status(), 303);
  await inOrder(page.locator("section.call > pre"), written, "the edited arguments");
  await page.locator("#live-log .agent pre.exact").first().waitFor();
  await inOrder(page.locator("#live-log .agent pre.exact").first(), written, "the live log");

  const several = await asks("write_note", ...Array(4).fill(`{"text":${JSON.stringify(MOVED)}}`));
  await page.goto(several.request.url);
  await inOrder(page.locator(".calls td.exact").first(), written, "one of several");
  await unfold(page, "Decide each call");
  await inOrder(page.locator("legend .exact").first(), MOVED, "the summary of one of several");

  const question = { question: MOVED, context: MOVED, form: { type: "object", properties: { a: { type: "string", title: MOVED } } } };
  const guidance = await asks("request_human_guidance", JSON.stringify(question));
  await page.goto(guidance.request.url);
  await inOrder(page.locator(".agent:not(#live *) > pre"), MOVED, "the question");
  await inOrder(page.locator(".agent:not(#live *) dd pre").first(), MOVED, "its details");
  await inOrder(page.locator("label bdi").first(), MOVED, "the agent's labels");
  await unfold(page, "The exact text that the agent wrote");
  await inOrder(page.locator(".agent:not(#live *) details pre"), written, "its exact text");
  assert.deepEqual(wrong, []);
  for (const { task } of [several, guidance]) await cancel(task);
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
  assert.match(await main(page), /shown to the model and approves nothing/);
  await page.getByLabel("Order").fill("18");
  await page.getByLabel("how").selectOption("card");
  if (javaScriptEnabled) {
    await readable(page, "guidance");
  }
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
  await readable(page, "confirmation");
  assert.equal(await page.locator("#answers button").count(), 2, "one yes and one no");
  assert.ok(!/Effect|read only/.test(await main(page)), "no call runs, and none is shown");
  await page.getByLabel("Comment").fill("not yet");
  assert.equal((await send(page, page.getByRole("button", { name: "No", exact: true }))).status(), 303);
  await page.locator("#headline", { hasText: "Answered with no by local. The agent was told." }).waitFor();
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
  await readable(page, "external");
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
  await readable(page, "reconcile");
  await page.getByLabel("Result", { exact: true }).fill("it happened");
  assert.equal((await send(page, page.getByRole("button", { name: "This is its result" }))).status(), 303);
  assert.match((await ended(lost.task)).output, /it happened/);
  assert.deepEqual(wrong, []);
  await context.close();
}

// A login: sealed for the named tools, and never shown again, not even when it does not fit.
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

// An agent's form with every type of field.
const everyField = {
  type: "object",
  title: "Your order",
  properties: {
    order: { type: "integer", title: "Order", description: "Its number", minimum: 1 },
    how: { enum: ["cash", "card"] },
    mail: { type: "string", format: "email" },
    day: { type: "string", format: "date" },
    share: { type: "number" },
    sure: { type: "boolean" },
    note: { type: "string", minLength: 2 },
  },
  required: ["order", "sure"],
};

// In both languages, by day and by night, on a desk and on a phone.
async function everybodyCanRead(browser) {
  const every = {
    approval: await refund(),
    several: await asks("refund_payment", ...[1, 2, 3, 4].map((order) => `{"order":${order},"amount":30}`)),
    guidance: await asks("request_human_guidance", '{"question":"What now?","options":["wait","go on"]}'),
    form: await asks("request_human_guidance", JSON.stringify({ question: "Which?", form: everyField })),
    confirmation: await asks("request_confirmation", '{"action":"Close it.","risks":["It may be reopened."]}'),
    credentials: await asks("comment_ticket", '{"text":"hello"}'),
    external: await asks("count_orders", '{"customer":4}'),
    reconcile: await asks("lose", '{"order":1}'),
  };
  const pages = Object.entries(every).map(([name, { request }]) => [name, request.url]);
  pages.push(["approve", every.approval.request.approval_url], ["reject", every.approval.request.rejection_url]);
  pages.push(["not-approvable", `${every.guidance.request.url}/approve`], ["unknown", `${service}/resume/0`], ["sign-in", `${service}/sign-in`]);
  for (const [locale, lang] of [["en-GB", "en"], ["zh-CN", "zh-Hans"]]) {
    for (const colorScheme of ["light", "dark"]) {
      const { context, page } = await newPage(browser, { locale, colorScheme });
      for (const [name, url] of pages) {
        await page.setViewportSize({ width: 1280, height: 900 });
        await page.goto(url);
        assert.equal(await page.locator("html").getAttribute("lang"), lang, name);
        await readable(page, `${name} ${lang} ${colorScheme}`);
        await shot(page, `${name}-${lang}-${colorScheme}-1280`);
        for (const width of [360, 320]) {
          await page.setViewportSize({ width, height: 800 });
          await fits(page, `${name} ${lang} at ${width}`);
          if (width === 360) await shot(page, `${name}-${lang}-${colorScheme}-360`);
        }
      }
      await context.close();
    }
  }
  for (const { task } of Object.values(every)) await cancel(task);
}

// A page that gets no live updates.
async function deafPage(browser) {
  const opened = await newPage(browser);
  await opened.context.route("**/follow.js", (route) => route.fulfill({ contentType: "text/javascript", body: "" }));
  return opened;
}

// Two people look at the same page; the second is told in words that the decision comes too late.
async function comesTooLate(browser) {
  const { request: asked } = await refund();
  const { context, page } = await deafPage(browser);
  await page.goto(asked.url);
  const first = await fetch(`${service}/resume/${asked.request_id}/reject`, { method: "POST" });
  assert.equal(first.status, 200);
  const answer = await send(page, page.getByRole("button", { name: "Approve", exact: true }));
  assert.equal(answer.status(), 409);
  assert.match(answer.headers()["content-type"], /^text\/html/);
  assert.match(await main(page), /Somebody decided first: local rejected at /);
  assert.ok(!/already_decided/.test(await main(page)), "names of the API are folded");
  await unfold(page, "For support");
  assert.match(await main(page), /already_decided/);
  await readable(page, "too late");
  await page.getByRole("link", { name: "Back to the request" }).click();
  await page.waitForURL(asked.url);
  await context.close();
}

// A page that no longer shows the current request cannot answer it.
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

// Another site's page can neither send our form nor frame our page.
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

await world.listen();
const browser = await world.launched(chromium, executablePath);
try {
  for (const javaScript of [true, false]) {
    await approves(browser, javaScript);
    await rejects(browser, javaScript);
    await editsWithAMistake(browser, javaScript);
    await changesInFields(browser, javaScript);
    await decidesEachCall(browser, javaScript);
    await decidesEight(browser, javaScript);
    await answersGuidance(browser, javaScript);
    await saysWhatBecameOfIt(browser, javaScript, "en-US");
    await saysWhatBecameOfIt(browser, javaScript, "zh-CN");
  }
  await decidesFromTheFirstScreen(browser);
  await buttonsStayBelowTheArguments(browser);
  await showsWhatWeighs(browser);
  await drawsTheOrderOfTheCharacters(browser);
  await decidesByKeyboard(browser);
  await hostileTextStaysText(browser);
  await answersTheOthers(browser);
  await givesALogin(browser);
  await everybodyCanRead(browser);
  await comesTooLate(browser);
  await showsSomethingElse(browser);
  await anotherSiteCannot(browser);
  await otherPagesLoad(browser);
  console.log("browser: all pages did as they should");
} finally {
  await browser.close();
  world.endpoint.close();
}
