// Tests texts of an agent that would mislead a reader. Run: node hostile.js URL CHROMIUM TOOL_PORT

import assert from "node:assert/strict";
import { asks, cancel, drawn, fits, inBrowser, newPage, send, unfold } from "./harness.js";

// An agent's text stays text: it runs no script, moves and hides nothing on the page, and pushes
// nothing out of the window.
async function hostileTextStaysText(browser) {
  const hostile = `</pre></textarea><script>alert(1)</script><img src=x onerror=alert(2)>\u202e${"<b>&amp;".repeat(12_000)}${"x".repeat(9_000)}END`;
  const args = JSON.stringify({ text: hostile });
  const { task, request: asked } = await asks("write_note", args);
  for (const width of [320, 1280]) {
    const { context, page, wrong } = await newPage(browser, { viewport: { width, height: 800 } });
    await page.goto(asked.url);
    const shown = await page.locator("div.agent:not(#live *) .raw pre").last().evaluate((pre) => pre.textContent);
    assert.equal(shown, args.replace("\u202e", "\\u{202e}"), "every byte");
    assert.equal(await page.locator("script:not([src='/times.js'], [src='/follow.js']), main img, main b").count(), 0, "nothing is markup");
    await fits(page, `hostile at ${width}`);
    const edited = await page.locator("textarea[name$='.arguments']").inputValue();
    assert.equal(edited, args.replace("\u202e", "\\u202e"), "and the editor hides none of them");
    assert.deepEqual(wrong, []);
    await context.close();
  }
  await cancel(task);
}

// Right-to-left letters move no digit: the characters are drawn in the order in which they are
// written.
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
  // The characters of a text field cannot be measured, so the text is drawn beside the field in the
  // same style.
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

await inBrowser(async (browser) => {
  await hostileTextStaysText(browser);
  await drawsTheOrderOfTheCharacters(browser);
  console.log("browser: texts that mislead were shown as they are");
});
