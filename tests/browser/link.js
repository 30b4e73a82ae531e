// Tests a person who has nothing but the sealed link in a message. Run: node link.js URL CHROMIUM
// TOOL_PORT
// Environment: ALICE_KEY is Alice's key, SEALING_KEY the sealing key, LINK the program that makes
// links.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { REFUND, ended, inBrowser, main, newPage, ran, readable, says, send, service, shot } from "./world.js";

const { ALICE_KEY, SEALING_KEY, LINK } = process.env;
const key = { authorization: `Bearer ${ALICE_KEY}`, "content-type": "application/json" };

const asked = (input = REFUND) => says(input, key);

const linkTo = (request, sealingKey = SEALING_KEY) =>
  `${service}/l/${execFileSync("python3", [LINK, sealingKey, "default", "alice", request.request_id]).toString().trim()}`;

const looks = {
  "desktop, light": { viewport: { width: 1280, height: 800 }, colorScheme: "light" },
  "desktop, dark": { viewport: { width: 1280, height: 800 }, colorScheme: "dark" },
  "phone, light": { viewport: { width: 360, height: 740 }, colorScheme: "light", isMobile: true },
  "phone, dark": { viewport: { width: 360, height: 740 }, colorScheme: "dark", isMobile: true },
};

// Each state of a link's page is accessible, fits the window and has no script.
async function isReadable(browser, locale) {
  const { task, request } = await asked();
  const decided = await asked();
  await fetch(decided.request.approval_url, { method: "POST", headers: key });
  await ended(decided.task, key);
  const login = await asked('request_credentials\n{"service":"jira","reason":"To comment."}');
  const other = Buffer.alloc(32, 7).toString("base64");
  const states = { open: linkTo(request), decided: linkTo(decided.request), kept: linkTo(login.request), none: linkTo(request, other) };
  for (const [look, options] of Object.entries(looks)) {
    for (const [state, url] of Object.entries(states)) {
      const { context, page, wrong } = await newPage(browser, { locale, ...options });
      const answer = await page.goto(url);
      assert.equal(answer.status(), state === "none" ? 404 : 200, state);
      assert.equal(await page.locator("script").count(), 0, state);
      await shot(page, `link-${state}-${look}-${locale}`);
      await readable(page, `link, ${state}, ${look}, ${locale}`);
      assert.equal(await page.locator("form").count() > 0, state === "open", state);
      assert.deepEqual(await context.cookies(), [], "no cookie is set");
      assert.deepEqual(wrong.filter((said) => state !== "none" || !/status of 404/.test(said)), []);
      await context.close();
    }
  }
  await fetch(`${service}/v1/tasks/${task.task_id}/cancel`, { method: "POST", headers: key });
}

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
  assert.equal((await ended(task, key)).status, "Completed");
  assert.equal(ran.length, before + 1, "it ran once");
  assert.deepEqual(await context.cookies(), []);
  assert.deepEqual(wrong, []);
  await context.close();
  const elsewhere = await newPage(browser, looks["phone, dark"]);
  await elsewhere.page.goto(url);
  assert.match(await main(elsewhere.page), /Approved by alice/);
  await elsewhere.context.close();
  const decision = await (await fetch(`${service}/resume/${request.request_id}`, { headers: key })).json();
  assert.deepEqual([decision.decision.by, decision.decision.door, decision.decision.reason], ["alice", "link", "looks right"]);
}

async function rejects(browser) {
  const { task, request } = await asked();
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled: false });
  await page.goto(linkTo(request));
  assert.equal((await send(page, page.locator(".decide button.no"))).status(), 303);
  assert.match(await main(page), /Rejected by alice/);
  assert.equal((await ended(task, key)).status, "Canceled");
  assert.deepEqual(wrong, []);
  await context.close();
}

await inBrowser(async (browser) => {
  await isReadable(browser, "en-US");
  await isReadable(browser, "zh-CN");
  await approves(browser);
  await rejects(browser);
  console.log("browser: people with a link did as they should");
});
