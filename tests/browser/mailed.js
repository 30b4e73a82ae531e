// Plays a person who has nothing but the link of a mail and a browser without JavaScript: opens the
// link, approves once the standard input says so, and reads the result. Prints each page's text as a
// line of JSON. Run: node mailed.js URL CHROMIUM LINK

import assert from "node:assert/strict";
import readline from "node:readline/promises";
import { launched, main, newPage, send } from "./harness.js";

const link = process.argv[4];
const lines = readline.createInterface({ input: process.stdin });
const says = (text) => console.log(JSON.stringify(text));
const browser = await launched();
try {
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled: false });
  const opened = await page.goto(link);
  assert.equal(opened.status(), 200);
  says(await main(page));
  await lines[Symbol.asyncIterator]().next();
  const pressed = await send(page, page.getByRole("button", { name: "Approve", exact: true }));
  assert.deepEqual([pressed.status(), page.url()], [303, link]);
  says(await main(page));
  for (const end = Date.now() + 30_000; !/The result as the agent is told/.test(await main(page)); await page.reload()) {
    assert.ok(Date.now() < end, await main(page));
  }
  says(await main(page));
  assert.equal(await page.locator("button").count(), 0, "nothing is left to decide");
  assert.deepEqual(await context.cookies(), []);
  assert.deepEqual(wrong, []);
} finally {
  await browser.close();
  lines.close();
}
