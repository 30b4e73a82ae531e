// Shared by all browser tests: the service, the endpoint of its tools, and a browser page that
// records everything that should not happen.

import assert from "node:assert/strict";
import fs from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";
import { shopAnswer } from "./shop.js";

// The source of axe, which checks the accessibility of the page in which it runs.
export const axe = fs.readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export const [service, executablePath, toolPort] = process.argv.slice(2);
const shots = process.env.SHOTS;

export const ran = [];
export const authorizations = [];

// The answers that calls of the tool `hang` wait for.
const held = [];

// The endpoint of the tools. It records each call, and then answers, holds the answer back or drops
// the connection. At `/mcp`, it serves an MCP server.
const endpoint = http.createServer((call, answer) => {
  let body = "";
  call.on("data", (piece) => (body += piece));
  call.on("end", () => {
    answer.setHeader("content-type", "application/json");
    if (call.url === "/mcp") return answer.end(shopAnswer(body));
    ran.push(body);
    authorizations.push(call.headers.authorization);
    if (call.url === "/lose") return call.socket.destroy();
    if (call.url === "/hang") return held.push(answer);
    if (call.url.startsWith("/fail")) answer.statusCode = 500;
    answer.end('{"done":true}');
  });
});

// Answers the calls of the tool `hang` that wait for their answers.
export function release() {
  for (const answer of held.splice(0)) answer.end('{"done":true}');
}

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
    // With fewer processes of the browser, the tests take a tenth less time.
    "--renderer-process-limit=1",
    "--in-process-gpu",
    "--disable-software-rasterizer",
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

// Returns a list in which a page records everything that should not happen: HTTP requests to other
// hosts, errors, dialogs, violations of the policy.
export function watched(page) {
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
  return wrong;
}

// Opens a page in a context of its own.
export async function newPage(browser, options = {}) {
  const context = await browser.newContext({ locale: "en-US", timezoneId: "UTC", ...options });
  const page = await context.newPage();
  return { context, page, wrong: watched(page) };
}

// Asserts that axe finds no accessibility violation, that the page fits the window, and that its
// targets are large enough for a finger.
export async function readable(page, name) {
  if (await page.evaluate(() => typeof axe === "undefined")) await page.evaluate(axe);
  const found = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"], reporter: "no-passes" }));
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

// Waits until `holds` is true, at most 30 seconds.
export async function eventually(holds, what) {
  const until = Date.now() + 30_000;
  while (!(await holds())) {
    assert.ok(Date.now() < until, what);
    await new Promise((later) => setTimeout(later, 20));
  }
}

// Hides a page, or shows it again, as another tab in front of it does.
export async function setVisibility(page, visibility) {
  await page.evaluate((visibility) => {
    Object.defineProperty(document, "visibilityState", { get: () => visibility, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, visibility);
}

// Waits until the inbox page follows the event stream. Before that, the page shows the time of its
// load, in UTC.
export const isLive = (page) => page.locator('#inbox-state:not(:has-text("UTC"))').waitFor();

export const unfold = (page, summary) => page.locator("summary").filter({ hasText: summary }).click();

export const main = (page) => page.locator("main").innerText();
