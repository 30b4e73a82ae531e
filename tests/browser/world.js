// Shared by all browser tests: the service, the endpoint of its tools, and a browser page that
// records everything that should not happen.

import assert from "node:assert/strict";
import fs from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const axe = fs.readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export const [service, executablePath, toolPort] = process.argv.slice(2);
const shots = process.env.SHOTS;

export const ran = [];
export const authorizations = [];

// The endpoint of the tools. It records each call, and then answers or drops the connection.
const endpoint = http.createServer((call, answer) => {
  let body = "";
  call.on("data", (piece) => (body += piece));
  call.on("end", () => {
    ran.push(body);
    authorizations.push(call.headers.authorization);
    if (call.url === "/lose") return call.socket.destroy();
    if (call.url.startsWith("/fail")) answer.statusCode = 500;
    answer.setHeader("content-type", "application/json");
    answer.end('{"done":true}');
  });
});

// Creates a task that waits for a person. Its model calls `tool` once for each text of arguments in
// `args`.
export const asks = (tool, ...args) => says([tool, ...args].join("\n"));

// Like `asks`, but with any text as the user's input. `headers` are those of a caller with a key.
export async function says(input, headers = { "content-type": "application/json" }) {
  const reply = await fetch(`${service}/v1/tasks`, { method: "POST", headers, body: JSON.stringify({ input }) });
  assert.equal(reply.status, 201);
  const task = await reply.json();
  assert.equal(task.status, "Paused", JSON.stringify(task));
  return { task, request: task.pending[0] };
}

export const REFUND = 'refund_payment\n{"order":17,"amount":120}';

export const refund = () => says(REFUND);

// Waits until the task has ended, and returns it.
export async function ended(task, headers = {}) {
  const reply = await fetch(`${service}/v1/tasks/${task.task_id}`, { headers: { ...headers, prefer: "wait=10" } });
  return reply.json();
}

export async function cancel(task) {
  await fetch(`${service}/v1/tasks/${task.task_id}/cancel`, { method: "POST" });
}

export async function request(id) {
  return (await fetch(`${service}/resume/${id}`)).json();
}

// Launches a browser without access to outside hosts.
export async function launched() {
  const args = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ];
  return chromium.launch({ executablePath, args });
}

// Runs the tests in a browser while the endpoint of the tools listens.
export async function inBrowser(tests) {
  await new Promise((ready) => endpoint.listen(Number(toolPort), "127.0.0.1", ready));
  const browser = await launched();
  try {
    await tests(browser);
  } finally {
    await browser.close();
    endpoint.close();
  }
}

// Opens a page that records in `wrong` everything that should not happen: HTTP requests to other
// hosts, errors, dialogs, violations of the policy.
export async function newPage(browser, options = {}) {
  const context = await browser.newContext({ locale: "en-US", timezoneId: "UTC", ...options });
  const page = await context.newPage();
  const wrong = [];
  page.on("request", (asked) => {
    if (new URL(asked.url()).origin !== service) wrong.push(`a foreign request: ${asked.url()}`);
  });
  page.on("console", (said) => {
    // Expected errors: Chromium asks for /favicon.ico, which does not exist, and some tests send
    // forms that the service refuses.
    const expected = said.location().url.endsWith("/favicon.ico") || /status of 4(01|03|09|10|12|22)/.test(said.text());
    if (["error", "warning"].includes(said.type()) && !expected) wrong.push(said.text());
  });
  page.on("pageerror", (error) => wrong.push(String(error)));
  page.on("dialog", (dialog) => {
    wrong.push(`a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  return { context, page, wrong };
}

// Asserts that axe finds no accessibility violation, that the page fits the window, and that its
// targets are large enough for a finger.
export async function readable(page, name) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
  const said = found.violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`);
  assert.deepEqual(said, [], name);
  await fits(page, name);
  const small = await page.evaluate(() =>
    [...document.querySelectorAll("button, summary, select, textarea, input:not([type=radio], [type=checkbox])")]
      .filter((target) => target.checkVisibility() && target.getBoundingClientRect().height < 44)
      .map((target) => target.outerHTML),
  );
  assert.deepEqual(small, [], `${name} has small targets`);
}

export async function fits(page, name) {
  const wider = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.ok(wider <= 0, `${name} scrolls sideways by ${wider}`);
}

// Returns the characters of an element's text in the order in which they are drawn: line by line,
// from left to right.
export async function drawn(handle) {
  return handle.evaluate((element) => {
    const node = document.createTreeWalker(element, NodeFilter.SHOW_TEXT).nextNode();
    const range = document.createRange();
    const boxes = [...node.data].map((character, at) => {
      range.setStart(node, at);
      range.setEnd(node, at + 1);
      const { left, top } = range.getBoundingClientRect();
      return { character, left, top: Math.round(top / 8) };
    });
    return boxes.sort((one, other) => one.top - other.top || one.left - other.left).map(({ character }) => character).join("");
  });
}

// Takes a screenshot for a person to look at, if SHOTS names a folder.
export async function shot(page, name) {
  if (!shots) return;
  fs.mkdirSync(shots, { recursive: true });
  await page.screenshot({ path: `${shots}/${name}.png`, fullPage: true });
}

// Sends a form. Returns the response to the POST, after the next page has loaded.
export async function send(page, button) {
  const [answer] = await Promise.all([
    page.waitForResponse((response) => response.request().method() === "POST"),
    page.waitForNavigation(),
    button.click(),
  ]);
  return answer;
}

export const unfold = (page, summary) => page.locator("summary").filter({ hasText: summary }).click();

export const main = (page) => page.locator("main").innerText();
