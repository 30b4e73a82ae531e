// Tests the layout of a request's page: the parts that a person needs for a decision, and their
// places. Run: node layout.js URL CHROMIUM TOOL_PORT

import assert from "node:assert/strict";
import { asks, cancel, ended, inBrowser, main, newPage, ran, readable, refund, request, says, send, unfold } from "./harness.js";

// Everything that the decision needs is in view without scrolling, and the arguments end above the
// buttons. The page's script shows times in the reader's zone, with UTC beside them.
async function decidesFromTheFirstScreen(browser) {
  const words = "Please refund 120 euros for order 17: the parcel came broken, and the customer has waited for two weeks.";
  const { task, request: asked } = await says(words);
  for (const [width, height] of [[1280, 800], [390, 844]]) {
    for (const look of [{ colorScheme: "light" }, { colorScheme: "dark" }, { forcedColors: "active" }, { javaScriptEnabled: false }]) {
      const { context, page, wrong } = await newPage(browser, { viewport: { width, height }, ...look, timezoneId: "Europe/Berlin" });
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
      const [title, shown] = [await time.getAttribute("title"), await time.innerText()];
      const hasScript = look.javaScriptEnabled !== false;
      const utc = hasScript ? title : shown;
      assert.match(utc, /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$/);
      if (hasScript) {
        assert.ok(shown.includes(`(${utc.slice(11, 16)} UTC)`) || shown.includes(`${utc.slice(11, 16)} UTC)`), `${shown}: ${utc}`);
        assert.ok(!shown.startsWith(utc.slice(11, 16)), `${shown} is in the reader's zone`);
      }
      if (look.forcedColors) await readable(page, `first screen ${width} in forced colors`);
      assert.deepEqual(wrong, []);
      await context.close();
    }
  }
  await cancel(task);
}

// On a phone, the buttons come into view below the end of the arguments. They stay in view while
// their form is in view.
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

// On a phone, the bar of buttons covers a field at the end of the window, until the field receives
// the focus.
async function barDoesNotCoverTheFocus(browser) {
  const eight = await says("Eight parcels came broken.");
  const four = await asks("refund_payment", ...[1, 2, 3, 4].map((order) => JSON.stringify({ order, amount: 30 })));
  for (const { request: asked } of [eight, four]) {
    const { context, page, wrong } = await newPage(browser, { viewport: { width: 390, height: 844 } });
    await page.goto(asked.url);
    const [reason, bar] = [page.locator("#decide-reason"), page.locator(".decide .bar")];
    const end = ({ y, height }) => y + height;
    await page.setViewportSize({ width: 390, height: Math.ceil(end(await reason.boundingBox())) });
    assert.ok(end(await reason.boundingBox()) > (await bar.boundingBox()).y, "the bar covers the field at first");
    await reason.evaluate((field) => field.focus());
    const field = await reason.boundingBox();
    assert.ok(field.y >= 0 && end(field) <= (await bar.boundingBox()).y, "the field stands above the bar");
    assert.deepEqual(wrong, []);
    await context.close();
  }
  for (const { task } of [eight, four]) await cancel(task);
}

// Changes the arguments in the form fields that the page makes from the tool's JSON schema.
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
  await page.getByLabel("Amount").fill("20,10");
  assert.equal((await send(page, approve)).status(), 422);
  assert.equal(await page.getByLabel("Amount").inputValue(), "20,10", "a text that is no number is kept");
  await page.getByLabel("Amount").fill("20.10");
  const before = ran.length;
  assert.equal((await send(page, approve)).status(), 303);
  assert.match(await main(page), /Changed and approved by local/);
  assert.equal((await ended(task)).status, "Completed");
  assert.deepEqual(ran.slice(before), ['{"order":17,"amount":20.10}']);
  assert.deepEqual(wrong, []);
  await context.close();
}

// The page shows eight calls in one table with a sum. One call is rejected, and one button approves
// the others.
async function decidesEight(browser, javaScriptEnabled) {
  const { task, request: asked } = await says("Eight parcels came broken.");
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled, viewport: { width: 1280, height: 800 } });
  await page.goto(asked.url);
  assert.equal(await page.title(), "Refund 20.10 for order 101, and 7 more · Holdpoint");
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

// A call that needs no decision looks different from the other calls, a shell command looks like a
// command, and warnings stand above the buttons.
async function showsWhatWeighs(browser) {
  const { context, page, wrong } = await newPage(browser);
  const beside = await says("Beside the refund, look it up.");
  await page.goto(beside.request.url);
  assert.match(await page.locator(".context").innerText(), /Shown for context, not for you to decide\s+lose allowed by a rule/);
  assert.equal(await page.locator(".context button, .context table").count(), 0);
  const shell = await asks("clean_up", '{"command":"rm -rf /var/tmp/reports"}');
  await page.goto(shell.request.url);
  assert.equal(await page.locator("pre.shell").innerText(), "rm -rf /var/tmp/reports");
  assert.match(await main(page), /Runs this command on the server\.\s+This cannot be undone here\./);
  const odd = await asks("write_note", '{"text":"pay \u202ebob"}');
  await page.goto(odd.request.url);
  const [warning, first] = [page.locator(".warnings"), page.locator("button").first()];
  const [over, under] = [await warning.boundingBox(), await first.boundingBox()];
  assert.ok(over.y + over.height <= under.y, "the warning stands above the first button");
  assert.ok(await page.locator(".raw pre").isVisible(), "with a warning the exact text is open");
  assert.deepEqual(wrong, []);
  for (const { task } of [beside, shell, odd]) await cancel(task);
  await context.close();
}

await inBrowser(async (browser) => {
  await decidesFromTheFirstScreen(browser);
  await buttonsStayBelowTheArguments(browser);
  await barDoesNotCoverTheFocus(browser);
  await showsWhatWeighs(browser);
  for (const javaScript of [true, false]) {
    await changesInFields(browser, javaScript);
    await decidesEight(browser, javaScript);
  }
  console.log("browser: everything to decide from stood in its place");
});
