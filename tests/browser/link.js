// Tests a person who has nothing but the sealed link in a message. Run: node link.js URL CHROMIUM
// TOOL_PORT
// Environment: see accounts.js.

import assert from "node:assert/strict";
import { ALICE_KEY, asked, call, ended, linkTo } from "./accounts.js";
import { inBrowser, main, newPage, ran, send } from "./harness.js";

// Without JavaScript and without a key, a person opens the link, approves, and opens the link again
// on another device.
async function approves(browser) {
  const { task, request } = await asked();
  const url = linkTo(request);
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled: false });
  const before = ran.length;
  await page.goto(url);
  assert.match(await main(page), /For alice \(alice@acme\.example\)\. A decision on this page counts as alice's\./);
  await page.locator('form textarea[name="reason"]').first().fill("looks right");
  assert.equal((await send(page, page.getByRole("button", { name: "Approve", exact: true }))).status(), 303);
  assert.equal(page.url(), url, "the answer leads back to the link");
  assert.match(await main(page), /Approved by alice/);
  assert.equal(await page.locator("button").count(), 0, "nothing is left to decide");
  assert.equal((await ended(task)).status, "Completed");
  assert.equal(ran.length, before + 1, "it ran once");
  assert.deepEqual(await context.cookies(), []);
  assert.deepEqual(wrong, []);
  await context.close();
  const elsewhere = await newPage(browser, { viewport: { width: 360, height: 740 }, isMobile: true });
  await elsewhere.page.goto(url);
  assert.match(await main(elsewhere.page), /Approved by alice/);
  await elsewhere.context.close();
  const { decision } = await call(ALICE_KEY, "GET", `/resume/${request.request_id}`);
  assert.deepEqual([decision.by, decision.door, decision.reason], ["alice", "link", "looks right"]);
}

async function rejects(browser) {
  const { task, request } = await asked();
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled: false });
  await page.goto(linkTo(request));
  assert.equal((await send(page, page.locator(".decide button.no"))).status(), 303);
  assert.match(await main(page), /Rejected by alice/);
  assert.equal((await ended(task)).status, "Canceled");
  assert.deepEqual(wrong, []);
  await context.close();
}

await inBrowser(async (browser) => {
  await approves(browser);
  await rejects(browser);
  console.log("browser: people with a link did as they should");
});
