// Tests how a page follows a task. Run: node live.js URL CHROMIUM TOOL_PORT SERVICE CONFIG FOLDER
// The tests start and stop the service. Some tests replace the service's event stream by a scripted
// stream.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import crypto from "node:crypto";
import fs from "node:fs";
import { eventually, fits, inBrowser, main, newPage, readable, send, service, setVisibility, shot, toolPort } from "./harness.js";

const [, , , , , program, config, folder] = process.argv;
const [ALICE_KEY, BOB_KEY] = [1, 2].map(() => crypto.randomBytes(18).toString("base64url"));
const { host } = new URL(service);
const environment = {
  PATH: process.env.PATH,
  SEALING_KEY: crypto.randomBytes(32).toString("base64"),
  TOOL_URL: `http://127.0.0.1:${toolPort}`,
  // A rule of the configuration needs the approvals of two people of finance.
  HOLDPOINT_AUTH__API_KEYS: `[{ user: alice, groups: [finance], key: '${ALICE_KEY}' }, { user: bob, groups: [finance], key: '${BOB_KEY}' }]`,
};

let running;

async function start() {
  const log = fs.openSync(`${folder}/service.log`, "a");
  const database = `sqlite://${folder}/live.db`;
  const args = ["serve", "--config", config, "--listen", host, "--database-url", database];
  const started = spawn(program, args, { env: environment, cwd: folder, stdio: ["ignore", log, log] });
  fs.closeSync(log);
  running = { process: started, gone: new Promise((gone) => started.once("exit", gone)) };
  for (let tries = 0; ; tries += 1) {
    const ready = await fetch(`${service}/readyz`).catch(() => undefined);
    if (ready?.ok) return;
    assert.ok(tries < 300 && started.exitCode === null, "the service starts");
    await new Promise((later) => setTimeout(later, 50));
  }
}

async function stop() {
  running.process.kill("SIGTERM");
  assert.equal(await running.gone, 0, "SIGTERM is an ordinary end, also with streams open");
}

async function call(method, path, body, headers = {}) {
  const reply = await fetch(service + path, {
    method,
    headers: { authorization: `Bearer ${ALICE_KEY}`, "content-type": "application/json", ...headers },
    body: body && JSON.stringify(body),
  });
  assert.ok(reply.ok, `${method} ${path}: ${reply.status}`);
  return reply.json();
}

async function asked(input) {
  const task = await call("POST", "/v1/tasks", { input });
  assert.equal(task.status, "Paused", JSON.stringify(task));
  return { task, request: task.pending[0] };
}

const refund = () => asked('refund_payment\n{"order":17,"amount":120}');
const approve = (request) => call("POST", `/resume/${request.request_id}/approve`, undefined, { prefer: "respond-async" });
const live = (page, part) => page.locator(`#live-${part}`);
const hasLog = (page) => page.locator('#live-log[aria-busy="false"]').waitFor();

// Returns the lines of the log: the text, the class and the addresses of the links of each.
const lines = (page) =>
  live(page, "log")
    .locator("> li")
    .evaluateAll((all) => all.map((line) => [line.innerText, line.className, ...[...line.querySelectorAll("a")].map((link) => link.href)]));
const says = (locator, text) => locator.filter({ hasText: text }).waitFor();

// Opens the page of a request and signs in there as Alice.
async function openPage(browser, request, options = {}) {
  const opened = await newPage(browser, options);
  await opened.page.goto(request.url);
  await opened.page.locator("#key").fill(ALICE_KEY);
  assert.equal((await send(opened.page, opened.page.locator('form[action$="/sign-in"] button'))).status(), 303);
  assert.equal(opened.page.url(), request.url);
  return opened;
}

// The browser's own EventSource, authorized by the cookie, reads the stream to the end of the task.
// It survives a pause of the task and a restart of the service. After the end, it stops
// reconnecting.
async function aBrowserFollowsByItself(browser) {
  const { task, request } = await refund();
  const { context, page, wrong } = await openPage(browser, request);
  const path = `/v1/tasks/${task.task_id}/events`;
  const statuses = [];
  page.on("response", (answer) => {
    if (new URL(answer.url()).search === "?after=0") statuses.push(answer.status());
  });
  await page.evaluate((path) => {
    window.heard = [];
    window.source = new EventSource(`${path}?after=0`);
    const names = ["task.created", "message.received", "message.completed", "tool_call.judged", "request.created",
      "task.paused", "request.decided", "task.resumed", "tool.started", "tool.finished", "task.completed", "caught_up"];
    for (const name of names) {
      source.addEventListener(name, (event) => heard.push({ name, id: event.lastEventId, data: JSON.parse(event.data) }));
    }
  }, path);
  const caughtUp = (times) =>
    page.waitForFunction((times) => heard.filter(({ name }) => name === "caught_up").length >= times, times);
  await caughtUp(1);
  await stop();
  await start();
  await caughtUp(2);
  await approve(request);
  await page.waitForFunction(() => source.readyState === EventSource.CLOSED);
  assert.equal(statuses.at(-1), 204, "there is nothing more, and the browser stops asking");
  const heard = (await page.evaluate(() => heard)).filter(({ name }) => name !== "caught_up");
  const { items } = await call("GET", `/v1/tasks/${task.task_id}/items`);
  assert.deepEqual(heard.map(({ id }) => Number(id)), items.map((_, at) => at + 1), "each event once, in order");
  assert.deepEqual(heard.map(({ data }) => data.type), items.map(({ type }) => type));
  assert.deepEqual([heard[0].name, heard.at(-1).name], ["task.created", "task.completed"]);
  await says(live(page, "connection"), "The task has ended");
  assert.deepEqual(wrong.filter((what) => !/net::ERR_|INCOMPLETE_CHUNKED/.test(what)), [], "but for the restart");
  await context.close();
}

// While a request's page is open, another client decides the request. The page says so, withdraws
// its form, and follows the task to the end.
async function thePageGoesOnByItself(browser, locale) {
  const words = {
    "en-US": { headline: "Approved by alice, and it ran.", gone: "Already decided: alice approved at ", done: "The task is completed.", again: "Load the page again", tool: "write_note: done" },
    "zh-CN": { headline: "alice 已批准，并已执行。", gone: "有人先作出决定：alice 于 ", done: "任务已完成。", again: "重新加载页面", tool: "write_note：已完成" },
  }[locale];
  const { task, request } = await asked('write_note\n{"text":"hello"}');
  const { context, page, wrong } = await openPage(browser, request, { locale });
  const form = page.locator('form[action$="/approve"]');
  assert.ok(await form.isVisible());
  await hasLog(page);
  await readable(page, `live, waiting, ${locale}`);
  await shot(page, `live-waiting-${locale}`);
  assert.equal(await page.locator("#meanwhile").innerText(), "", "the request itself is no news");
  let moved = 0;
  page.on("framenavigated", () => (moved += 1));
  await form.locator("textarea").fill("just typing");
  await page.evaluate(() => {
    window.grown = [];
    const look = () => grown.push(document.querySelector("#live-now pre")?.textContent ?? "");
    new MutationObserver(look).observe(document.querySelector("#live-now"), { childList: true, subtree: true, characterData: true });
  });
  await approve(request);
  await says(page.locator("#meanwhile"), words.gone);
  assert.ok(!(await form.isVisible()), "it cannot be answered any more");
  assert.equal(await page.evaluate(() => document.activeElement.innerText), words.again, "the focus moves to the notice");
  await says(live(page, "log"), words.tool);
  await says(live(page, "state"), words.done);
  await says(page.locator("#headline"), words.headline);
  assert.equal(await page.title(), `${words.headline} · Note: hello · Holdpoint`);
  assert.ok(!(await page.locator("#past").isVisible()), "the events take the place of the stored history");
  const { output } = await call("GET", `/v1/tasks/${task.task_id}`);
  assert.ok(output.startsWith("The note is written."));
  assert.ok(!(await page.locator("#standing").isVisible()), "and nothing says that it waits");
  const result = live(page, "log").locator(".agent").filter({ hasText: "one word after the other" });
  assert.equal(await result.locator("pre").textContent(), output, "once");
  assert.equal(await result.locator(".by").isVisible(), true, "the agent's text is marked as such");
  const grown = await page.evaluate(() => grown.filter((text) => text !== ""));
  const lengths = [...new Set(grown.map((text) => text.length))];
  assert.ok(lengths.length > 5, `the text grows: ${lengths}`);
  assert.ok(grown.every((text) => output.startsWith(text)), "and is always a prefix of the output");
  await page.waitForFunction(() => !document.querySelector("#live-now > *"));
  assert.equal(moved, 0, "without a reload");
  await readable(page, `live, ended, ${locale}`);
  await shot(page, `live-ended-${locale}`);
  await page.setViewportSize({ width: 320, height: 800 });
  await fits(page, "live at 320");
  assert.deepEqual(wrong, []);
  await page.locator("#meanwhile a").click();
  await page.waitForURL(request.url);
  assert.equal(await page.locator("#meanwhile > *").count(), 0, "the page's own content is no news");
  await context.close();
}

// A decision leads the user back to the page of the request, which shows the rest of the task.
async function whoDecidesWatchesTheRest(browser) {
  const { request } = await asked('write_note\n{"text":"hello"}');
  const { context, page, wrong } = await openPage(browser, request);
  assert.equal((await send(page, page.getByRole("button", { name: "Approve", exact: true }))).status(), 303);
  await says(live(page, "state"), "The task is completed.");
  await says(live(page, "log"), "The note is written.");
  assert.equal(await page.locator("#meanwhile").innerText(), "", "the user's own decision is no news");
  assert.deepEqual(wrong, []);
  await context.close();
}

// The page of a request lists the task's other request while that request is open.
async function othersAreListed(browser) {
  const { task } = await asked("both");
  const [refund, guidance] = ["approval", "guidance"].map((kind) => task.pending.find((one) => one.kind === kind));
  const { context, page, wrong } = await openPage(browser, refund);
  const others = page.locator("#task-questions li");
  await says(others, "(worker, guidance) Review");
  assert.equal(await others.getByRole("link").getAttribute("href"), new URL(guidance.url).pathname);
  await call("POST", `/resume/${guidance.request_id}`, { action: "respond", response: { answer: "the first" } });
  await others.waitFor({ state: "detached" });
  assert.ok(await page.locator('form[action$="/approve"]').isVisible(), "this one is still to be decided");
  assert.equal(await page.locator("#meanwhile").innerText(), "");
  await call("POST", `/v1/tasks/${task.task_id}/cancel`);
  await says(page.locator("#meanwhile"), "This request was withdrawn.");
  await says(live(page, "state"), "The task was canceled.");
  assert.deepEqual(wrong, []);
  await context.close();
}

async function withoutAScriptNothingIsMissing(browser) {
  const { request } = await refund();
  const { context, page, wrong } = await openPage(browser, request, { javaScriptEnabled: false });
  assert.ok(!(await page.locator("#live").isVisible()));
  assert.equal((await send(page, page.getByRole("button", { name: "Approve", exact: true }))).status(), 303);
  assert.match(await main(page), /Approved by alice/);
  assert.deepEqual(wrong, []);
  await context.close();
}

// Opens the page of a request with a scripted stream. Each connection gets the next of `answers`,
// and every further connection gets a 204. `init` runs in the page before the page's own script.
// `entries` returns the response to a load of the log's entries, by the number of the load; without
// a response, the service answers.
async function told(browser, answers, { clock, init, entries, question = refund, ...options } = {}) {
  const { request, task } = await question();
  const opened = await newPage(browser, options);
  const [asked, loads] = [[], []];
  const ids = { task_id: task.task_id, root_task_id: task.task_id, agent_path: ["worker"], at: "2026-11-03T09:31:00.000001Z" };
  await opened.context.route("**/events*", async (route) => {
    asked.push(route.request().url());
    const answer = answers[asked.length - 1];
    if (!answer) return route.fulfill({ status: 204 });
    if (answer.status) return route.fulfill(answer);
    const lines = answer.map(([id, name, data]) => `${id ? `id: ${id}\n` : ""}event: ${name}\ndata: ${JSON.stringify({ ...ids, ...data(request) })}\n\n`);
    return route.fulfill({ contentType: "text/event-stream", body: `retry: 10\n\n${lines.join("")}` });
  });
  await opened.context.route("**/tasks/*?after=*", (route) => {
    const answer = entries?.(loads.push(route.request().url()));
    return answer ? route.fulfill({ contentType: "text/html", ...answer }) : route.continue();
  });
  if (clock) await opened.page.clock.install();
  if (init) await opened.page.addInitScript(init);
  await opened.page.goto(request.url);
  await opened.page.locator("#key").fill(ALICE_KEY);
  await send(opened.page, opened.page.locator('form[action$="/sign-in"] button'));
  return { ...opened, asked, loads, request, task };
}

const nothing = () => ({});
const completed = (id) => [id, "task.completed", () => ({ status: "Completed", output: "", error: null })];
const text = (offset, delta) => [0, "output_text.delta", () => ({ turn: 2, offset, delta })];

// The text of an event stays text, its invisible characters are shown, and the text of an answer is
// marked as not written by the service.
async function hostileEventsStayText(browser) {
  const evil = `</pre><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\u200b{user}`;
  const shown = evil.replace("\u202e", "\\u{202e}").replace("\u200b", "\\u{200b}");
  const decision = { action: evil, by: evil, at: evil };
  const { context, page, wrong } = await told(browser, [
    [
      [1, "request.decided", ({ request_id }) => ({ request_id, request: { status: "pending" }, decision })],
      [2, "task.failed", () => ({ status: evil })],
      [0, "tool_call.named", () => ({ turn: 2, tool_call_id: "c", agent_path: [evil, evil], name: evil })],
      [0, "output_text.delta", () => ({ turn: 2, offset: 0, delta: evil })],
      [0, "tool_call.arguments.delta", () => ({ turn: 2, tool_call_id: "c", offset: 0, delta: evil })],
      [0, "caught_up", () => ({ after: 2 })],
    ],
  ]);
  await says(page.locator("#live-now"), "alert");
  await hasLog(page);
  assert.equal(await page.locator("main script:not([src]), main img").count(), 0, "nothing is markup");
  const [news, state, now] = await Promise.all(["#meanwhile", "#live-state", "#live-now"].map((part) => page.locator(part).textContent()));
  assert.deepEqual([news, state, now].map((content) => content.split(shown).length - 1), [3, 1, 5], "everything is shown");
  assert.doesNotMatch(news + state + now, /[\u202e\u200b]/, "and nothing hides");
  assert.equal(await page.locator("#live-now pre").count(), 2);
  assert.equal(await page.locator("#live-now pre:not(.agent > .by ~ pre)").count(), 0, "the author is named");
  const message = live(page, "log").locator("pre").first();
  assert.equal(await message.getAttribute("dir"), "auto", "a user's text has the direction of its script");
  await fits(page, "hostile events");
  await readable(page, "hostile events");
  assert.deepEqual(wrong, []);
  await context.close();
}

// Deltas are shown up to the first gap. A reset, a delta of a later turn, the stored answer and the
// task's end remove the shown deltas.
async function piecesAreShownOnlyWhole(browser) {
  const both = (name, turn, call, offset, delta) => [0, name, () => ({ turn, tool_call_id: call, offset, delta })];
  const now = async (answer) => {
    const { context, page, wrong } = await told(browser, [[[1, "task.created", () => ({ status: "Running" })], ...answer, [0, "caught_up", nothing]]]);
    await hasLog(page);
    const shown = await page.locator("#live-now pre").allTextContents();
    assert.deepEqual(wrong, []);
    await context.close();
    return shown;
  };
  assert.deepEqual(await now([text(0, "a🙂"), text(2, "b\nc"), text(5, "d")]), ["a🙂b\ncd"]);
  assert.deepEqual(await now([text(3, "in the middle")]), [], "a late reader waits for the whole");
  assert.deepEqual(await now([text(0, "one"), text(9, "gap"), text(12, "more")]), ["one"]);
  assert.deepEqual(await now([text(0, "one"), text(0, "again")]), ["again"]);
  assert.deepEqual(await now([text(0, "void"), [0, "message.reset", () => ({ turn: 2 })]]), []);
  assert.deepEqual(await now([text(0, "void"), [0, "message.reset", () => ({ turn: 2 })], text(0, "new")]), ["new"]);
  assert.deepEqual(await now([text(0, "old"), both("output_text.delta", 3, "", 0, "next turn")]), ["next turn"]);
  assert.deepEqual(
    await now([
      [0, "tool_call.named", () => ({ turn: 2, tool_call_id: "a", name: "one" })],
      both("tool_call.arguments.delta", 2, "a", 0, '{"x":'),
      both("tool_call.arguments.delta", 2, "b", 0, "{"),
      both("tool_call.arguments.delta", 2, "a", 5, "1}"),
    ]),
    ['{"x":1}', "{"],
  );
  assert.deepEqual(await now([text(0, "said"), [2, "message.completed", () => ({ turn: 2, text: "said so", tool_calls: [] })]]), []);
  assert.deepEqual(await now([text(0, "cut off"), [2, "task.canceled", () => ({ status: "Canceled" })]]), []);
}

// The browser resumes the stream after the last event. However often the page loads the entries, each
// is shown once, and the page stops reconnecting after the end of the task.
async function eachEventIsShownOnce(browser) {
  const created = [1, "task.created", () => ({ status: "Running" })];
  const started = [2, "tool.started", () => ({ name: "first", attempt: 1 })];
  const caughtUp = [0, "caught_up", nothing];
  const { context, page, wrong, asked } = await told(browser, [[created, started, caughtUp], [created, started, caughtUp, completed(3)]]);
  await says(live(page, "connection"), "The task has ended");
  await hasLog(page);
  const numbers = (await lines(page)).map(([line]) => /^#\d+/.exec(line)[0]);
  assert.deepEqual(numbers, ["#1", "#2", "#3", "#4", "#5", "#6"]);
  assert.equal(asked.length, 3);
  assert.deepEqual(wrong, []);
  await context.close();
}

// If an answer arrives that leaves the request open, the page reports the answer and keeps the
// form. An answer that the page already contained when it was loaded is not reported.
async function aPartialAnswerLeavesTheForm(browser) {
  const decided = (id, status) => [id, "request.decided", ({ request_id }) => ({
    request_id, request: { status }, decision: { action: "approve", by: "bob", at: "2026-11-03T09:31:00.000001Z" } })];
  const { context, page, wrong } = await told(browser, [[decided(1, "pending"), [0, "caught_up", nothing]], [decided(2, "responded"), completed(3)]]);
  await says(page.locator("#meanwhile"), "Already decided: bob approved at Nov 3, 2026, 09:31 UTC.");
  assert.ok(!(await page.locator("#answers").isVisible()));
  assert.deepEqual(wrong, []);
  await context.close();
  const half = await told(browser, [[decided(1, "pending"), completed(2)]]);
  await says(half.page.locator("#meanwhile"), "The question is still open.");
  assert.ok(await half.page.locator('.decide button:not(.no)').isVisible());
  await half.context.close();
  const question = async () => {
    const several = await asked(["refund_payment", ...[1, 2, 3, 4].map((order) => `{"order":${order},"amount":30}`)].join("\n"));
    const [{ tool_call_id: first }] = several.request.tool_calls;
    await call("POST", `/resume/${several.request.request_id}`, { decisions: { [first]: { action: "approve" } } });
    return several;
  };
  const known = await told(browser, [[decided(1, "pending"), [0, "caught_up", nothing]]], { question });
  await says(live(known.page, "log"), "Approved by alice");
  assert.equal(await known.page.locator("#meanwhile > *").count(), 0, "the page's own content is no news");
  await known.context.close();
  const next = await told(browser, [[decided(1, "pending"), decided(2, "pending"), completed(3)]], { question });
  await says(next.page.locator("#meanwhile"), "The question is still open.");
  await next.context.close();
}

// A page may lack the element `#standing`, which shows the time left until the deadline. When the
// request expires, such a page says so, too.
async function anOverduePageTakesTheExpiry(browser) {
  const init = () => {
    const remove = () => document.getElementById("standing")?.remove();
    new MutationObserver(remove).observe(document, { childList: true, subtree: true });
  };
  const expired = [1, "request.expired", ({ request_id }) => ({ request_id })];
  const { context, page, wrong } = await told(browser, [[expired, completed(2)]], { init });
  await says(page.locator("#meanwhile"), "This request has expired.");
  assert.equal(await page.locator("#standing").count(), 0);
  assert.deepEqual(wrong, []);
  await context.close();
}

// The page retries a refused stream at growing intervals, each time from the last event. Then it
// gives up, and says so.
async function aRefusalIsNotAskedForEver(browser) {
  const refused = { status: 503, contentType: "application/problem+json", body: "{}" };
  const begun = [[1, "task.created", () => ({ status: "Running" })], [2, "task.paused", () => ({ status: "Paused" })], [0, "caught_up", nothing]];
  const { context, page, asked, task } = await told(browser, [begun, ...Array(20).fill(refused)], { clock: true });
  await says(live(page, "connection"), "the page reconnects");
  for (let times = 2; times <= 7; times += 1) {
    await eventually(async () => (await page.evaluate(() => 0), asked.length >= times), `it is asked ${times} times`);
    // In one minute of its clock, the page may make two attempts. So it may give up before the last
    // round.
    await says(live(page, "connection"), /the page reconnects|no longer follows the task/);
    await page.clock.runFor(60_000);
  }
  await says(live(page, "connection"), "no longer follows the task");
  await page.clock.runFor(600_000);
  assert.equal(asked.length, 7);
  const path = `${service}/v1/tasks/${task.task_id}/events`;
  assert.deepEqual([...new Set(asked)], [path, `${path}?after=2`]);
  await context.close();
}

// A hidden page closes its stream, and resumes it once the page is visible again.
async function aHiddenPageDoesNotListen(browser) {
  const { task, request } = await refund();
  const { context, page, wrong } = await openPage(browser, request);
  const streams = (count) =>
    eventually(async () => {
      const metrics = await (await fetch(`${service}/metrics`)).text();
      return Number(/^holdpoint_event_streams(?:\{.*\})? (\d+)$/m.exec(metrics)?.[1] ?? 0) === count;
    }, `${count} open streams`);
  await says(live(page, "connection"), "follows the task");
  await streams(1);
  await hasLog(page);
  const before = await live(page, "log").locator("li").count();
  await setVisibility(page, "hidden");
  await streams(0);
  await approve(request);
  await call("GET", `/v1/tasks/${task.task_id}`, undefined, { prefer: "wait=10" });
  assert.equal(await live(page, "log").locator("li").count(), before);
  await setVisibility(page, "visible");
  await says(live(page, "log"), "Completed.");
  const { items } = await call("GET", `/v1/tasks/${task.task_id}/items`);
  assert.equal(await live(page, "log").locator("li").count(), items.length, "each event once");
  assert.deepEqual(wrong, []);
  await context.close();
}

// The open pages of a tree, of its sub-agent and of its request have the same lines as after a
// reload: words, numbers, indentation and links.
async function openPagesEqualTheirReload(browser, locale) {
  const { task, request } = await asked(`clerk\n${JSON.stringify({ task: 'write_note\n{"text":"below"}' })}`);
  const { context, page: asking, wrong } = await openPage(browser, request, { locale, timezoneId: "Europe/Berlin" });
  const [whole, part] = [await context.newPage(), await context.newPage()];
  await whole.goto(`${service}/tasks/${task.task_id}`);
  await part.goto(`${service}/tasks/${request.task_id}`);
  const pages = [asking, whole, part];
  for (const page of pages) await hasLog(page);
  const early = await live(whole, "log").locator("li").count();
  await call("POST", `/resume/${request.request_id}`, { action: "approve", reason: "fine with me" });
  for (const page of pages) await says(live(page, "connection"), /The task has ended|任务已结束/);
  const ends = [];
  for (const page of [whole, part]) {
    const fresh = await context.newPage();
    await fresh.goto(page.url());
    const reloaded = await lines(fresh);
    await eventually(async () => (await lines(page)).length === reloaded.length, "the last line");
    assert.deepEqual(await lines(page), reloaded);
    assert.equal(await page.locator("h1").innerText(), await fresh.locator("h1").innerText());
    ends.push(reloaded);
    await fresh.close();
  }
  const [all, below] = ends;
  assert.deepEqual(all.map(([line]) => Number(/^#(\d+)/.exec(line)[1])), all.map((_, at) => at + 1), "each event once, in order");
  assert.deepEqual(all.filter(([, className]) => className === "below"), below, "the sub-agent's lines are indented");
  const late = all.slice(early);
  assert.ok(late.some(([line]) => /fine with me/.test(line)) && all.some(([line]) => /Judged|判定/.test(line)));
  assert.deepEqual([...new Set(late.flatMap(([, , ...links]) => links))], [request.url], "the decision leads to the request");
  await eventually(async () => (await lines(asking)).length === all.length, "the last line");
  assert.deepEqual(await lines(asking), all, "the page of the request has the lines of the whole tree");
  await asking.reload();
  await hasLog(asking);
  assert.deepEqual(await lines(asking), all);
  assert.deepEqual(wrong, []);
  await context.close();
}

// The log has at most 400 entries, and says so if it lacks earlier ones.
async function aLongLogBeginsWithANote(browser) {
  for (const [count, isNoted, more] of [[400, false, ""], [401, true, ""], [3, true, '<a id="earlier">Earlier than #9</a>']]) {
    const body = `<div id="task-questions"></div>${more}<ol id="live-log" data-after="${count}">${"<li>x</li>".repeat(count)}</ol>`;
    const { context, page, wrong } = await told(browser, [[completed(1)]], { entries: () => ({ body }) });
    await hasLog(page);
    assert.equal(await live(page, "log").locator("li").count(), Math.min(count, 400));
    assert.equal(await live(page, "earlier").isVisible(), isNoted);
    assert.deepEqual(wrong, []);
    await context.close();
  }
}

// If the entries of new events do not load, the page tries again, and at last says that it no longer
// follows the task.
async function entriesThatDoNotLoadAreAskedForAgain(browser) {
  const events = [[1, "task.created", () => ({ status: "Running" })], completed(2)];
  const passes = (page, until) => eventually(async () => (await page.clock.runFor(10_000), await until()), "the page tries again");
  const refused = { status: 503, body: "<p>Away." };
  const late = await told(browser, [events], { clock: true, entries: (load) => load < 3 && refused });
  await passes(late.page, async () => (await late.page.locator('#live-log[aria-busy="false"] > li').count()) === 6);
  assert.equal(late.loads.length, 3);
  await says(live(late.page, "connection"), "The task has ended");
  await late.context.close();
  const never = await told(browser, [events], { clock: true, entries: () => refused });
  await passes(never.page, async () => /no longer follows/.test(await live(never.page, "connection").textContent()));
  await never.page.clock.runFor(600_000);
  assert.equal(never.loads.length, 6);
  await never.context.close();
}

await start();
try {
  await inBrowser(async (browser) => {
    await hostileEventsStayText(browser);
    await piecesAreShownOnlyWhole(browser);
    await eachEventIsShownOnce(browser);
    await aPartialAnswerLeavesTheForm(browser);
    await anOverduePageTakesTheExpiry(browser);
    await aRefusalIsNotAskedForEver(browser);
    await withoutAScriptNothingIsMissing(browser);
    await aBrowserFollowsByItself(browser);
    await thePageGoesOnByItself(browser, "en-US");
    await thePageGoesOnByItself(browser, "zh-CN");
    await whoDecidesWatchesTheRest(browser);
    await othersAreListed(browser);
    await aLongLogBeginsWithANote(browser);
    await entriesThatDoNotLoadAreAskedForAgain(browser);
    await aHiddenPageDoesNotListen(browser);
    for (const locale of ["en-US", "zh-CN"]) await openPagesEqualTheirReload(browser, locale);
    await stop();
    console.log("browser: what happens was seen as it happened");
  });
} finally {
  running.process.kill();
}
