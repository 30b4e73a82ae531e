// The pages in a real browser, against the built-in demonstration: node pages.js URL CHROMIUM

import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const [service, executablePath] = process.argv.slice(2);

// A refund that is held, as a backend would create it.
async function held() {
  const reply = await fetch(`${service}/v1/tasks`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ input: "refund 120 for order 17" }),
  });
  assert.equal(reply.status, 201);
  const task = await reply.json();
  assert.equal(task.status, "Paused");
  return { task, request: task.pending[0] };
}

// The task once it has come to an end.
async function ended(task) {
  const reply = await fetch(`${service}/v1/tasks/${task.task_id}`, { headers: { prefer: "wait=10" } });
  return reply.json();
}

async function request(id) {
  return (await fetch(`${service}/resume/${id}`)).json();
}

// A page that notes everything that should not be: other addresses, errors, things the policy stopped.
async function newPage(browser, javaScriptEnabled) {
  const context = await browser.newContext({ javaScriptEnabled });
  const page = await context.newPage();
  const wrong = [];
  page.on("request", (asked) => {
    if (new URL(asked.url()).origin !== service) wrong.push(`a foreign request: ${asked.url()}`);
  });
  page.on("console", (said) => {
    // Chromium asks for /favicon.ico of its own accord; there is none.
    if (["error", "warning"].includes(said.type()) && !said.location().url.endsWith("/favicon.ico")) wrong.push(said.text());
  });
  page.on("pageerror", (error) => wrong.push(String(error)));
  return { context, page, wrong };
}

async function seesEverything(page, request) {
  const text = await page.locator("main").innerText();
  for (const call of request.tool_calls) {
    assert.ok(text.includes(call.arguments_text), "every byte of the arguments");
    for (const shown of [call.name, call.summary, call.reason, call.rule, call.target]) assert.ok(text.includes(shown), shown);
  }
  const position = await page.locator("pre").last().evaluate((pre) => pre.getBoundingClientRect().top).catch(() => 0);
  const button = await page.locator("button").first().boundingBox();
  assert.ok(button.y >= position, "the arguments stand before the first button");
}

async function approves(browser, javaScript) {
  const { task, request: asked } = await held();
  const { context, page, wrong } = await newPage(browser, javaScript);
  await page.goto(asked.url);
  if (javaScript) await seesEverything(page, asked);
  await page.locator('form[action$="/approve"] textarea').fill("looks right\nto me");
  await page.getByRole("button", { name: "Approve" }).click();
  await page.waitForURL(asked.url);
  const text = await page.locator("main").innerText();
  assert.match(text, /approve by local/);
  assert.equal(await page.locator("button").count(), 0, "nothing is left to decide");
  assert.equal((await ended(task)).status, "Completed");
  assert.equal((await request(asked.request_id)).decision.reason, "looks right\nto me");
  await page.goBack();
  await page.reload();
  assert.equal(await page.locator("button").count(), 0, "going back shows no button either");
  assert.deepEqual(wrong, []);
  await context.close();
}

async function rejects(browser, javaScript) {
  const { task, request: asked } = await held();
  const { context, page, wrong } = await newPage(browser, javaScript);
  await page.goto(asked.rejection_url);
  assert.equal(await page.getByRole("button").count(), 1, "one button on this page");
  await page.locator('textarea[name="reason"]').fill("<script>alert(1)</script> wrong customer");
  await page.getByRole("button").click();
  await page.waitForURL(asked.url);
  assert.match(await page.locator("main").innerText(), /<script>alert\(1\)<\/script> wrong customer/);
  assert.equal((await ended(task)).status, "Canceled");
  assert.deepEqual(wrong, []);
  await context.close();
}

// Two people look at the same page; the second is told that he comes too late, in words.
async function comesTooLate(browser) {
  const { request: asked } = await held();
  const { context, page } = await newPage(browser, true);
  await page.goto(asked.url);
  const first = await fetch(`${service}/resume/${asked.request_id}/reject`, { method: "POST" });
  assert.equal(first.status, 200);
  const [answer] = await Promise.all([
    page.waitForResponse((response) => response.request().method() === "POST"),
    page.getByRole("button", { name: "Approve" }).click(),
  ]);
  assert.equal(answer.status(), 409);
  assert.match(answer.headers()["content-type"], /^text\/html/);
  await page.waitForLoadState();
  assert.match(await page.locator("main").innerText(), /reject by local[^]*already_decided/);
  await page.getByRole("link", { name: "Back to the request" }).click();
  await page.waitForURL(asked.url);
  await context.close();
}

// Another site's page can neither send our form nor frame our page.
async function anotherSiteCannot(browser) {
  const { task, request: asked } = await held();
  const { context, page } = await newPage(browser, true);
  const foreign = "http://evil.localhost:9/";
  await page.route(`${foreign}**`, (route) =>
    route.fulfill({
      contentType: "text/html",
      body: `<iframe src="${asked.url}"></iframe><form method="post" action="${asked.approval_url}"><button>Win a prize</button></form>`,
    }),
  );
  await page.goto(foreign);
  const framed = page.frames().find((frame) => frame !== page.mainFrame());
  assert.equal(await framed?.locator("button").count(), 0, "nobody frames the page");
  const [answer] = await Promise.all([
    page.waitForResponse((response) => response.request().method() === "POST"),
    page.getByRole("button", { name: "Win a prize" }).click(),
  ]);
  assert.equal(answer.status(), 403);
  assert.equal((await request(asked.request_id)).status, "pending");
  await fetch(`${service}/v1/tasks/${task.task_id}/cancel`, { method: "POST" });
  await context.close();
}

async function otherPagesLoad(browser) {
  const { context, page, wrong } = await newPage(browser, true);
  await page.goto(`${service}/problems/digest_mismatch`);
  assert.match(await page.locator("main").innerText(), /What to do/);
  await page.goto(`${service}/docs`);
  await page.getByText("/resume/{request_id}", { exact: true }).first().waitFor();
  assert.deepEqual(wrong, []);
  await context.close();
}

const browser = await chromium.launch({
  executablePath,
  args: [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
});
try {
  for (const javaScript of [true, false]) {
    await approves(browser, javaScript);
    await rejects(browser, javaScript);
  }
  await comesTooLate(browser);
  await anotherSiteCannot(browser);
  await otherPagesLoad(browser);
  console.log("browser: all pages did as they should");
} finally {
  await browser.close();
}
