// Checks every state of the inbox, of tasks and of questions in every look, in a service without
// accounts and with an empty database. Run: node states.js URL CHROMIUM TOOL_PORT DATABASE

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { after, hadEveryLook, inEveryLook } from "./looks.js";
import { asks, cancel, ended, eventually, inBrowser, isLive, ran, refund, release, request, says, service, setVisibility } from "./harness.js";

const database = process.argv[5];
const note = (text) => asks("write_note", JSON.stringify({ text }));
const refunds = (...amounts) => asks("refund_payment", ...amounts.map((amount) => JSON.stringify({ order: amount, amount })));
const sent = (path, body) =>
  fetch(service + path, { method: "POST", headers: { "content-type": "application/json", prefer: "respond-async" }, body: body && JSON.stringify(body) });
const approve = ({ request: asked }) => sent(`/resume/${asked.request_id}/approve`);
const row = (page, { request: asked }) => page.locator(`#inbox-rows > li[data-request="${asked.request_id}"]`);

// Runs a statement with a task's id on the service's database.
function execute(statement, id) {
  const program = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=30); c.execute(sys.argv[2], (bytes.fromhex(sys.argv[3]),)); c.commit()";
  execFileSync("python3", ["-c", program, database, statement, id.replaceAll("-", "")]);
}

// Returns a function that lets the browser give this permission when a page asks to show notices.
const answersNotices = (permission) => (page) =>
  page.addInitScript((given) => {
    window.Notification = class {
      static permission = given;
      static requestPermission = async () => given;
    };
  }, permission);

const empty = {
  "no task": { at: "/tasks", shows: "main:not(:has(table))" },
  "nothing waits": { at: "/inbox", shows: "#inbox-empty" },
  "nothing fits": { at: "/inbox?kind=guidance", shows: ".filter[open] ~ #inbox-empty" },
  "nothing decided": { at: "/inbox/decided?all=1", shows: "main:not(:has(.rows > li))" },
  "nothing remembered": { at: "/grants", shows: "main:not(:has(form[action*='grants']))" },
  "the last question is answered": {
    ask: after(refund, approve),
    at: ({ request: asked }) => asked.url,
    shows: ".next:not(:has([autofocus]))",
  },
  "nothing waited, and one is new": {
    at: "/inbox",
    isScripted: true,
    loaded: isLive,
    then: refund,
    shows: "#inbox-new:has(button) ~ #inbox-empty",
  },
};

const inbox = {
  "few wait": {
    ask: async () => {
      await refunds(1, 2, 3, 4);
      await note("pay \u202ebob");
      await asks("request_human_guidance", '{"question":"Which one?"}');
    },
    at: "/inbox",
    shows: "#inbox-rows > li .counts",
  },
  "the next question": {
    ask: after(refund, approve),
    at: ({ request: asked }) => asked.url,
    shows: ".next [autofocus]",
  },
  decided: { at: "/inbox/decided", shows: ".rows > li .status" },
  "urgent first": {
    ask: () => note("soon"),
    at: "/inbox",
    shows: "#inbox-rows > li:first-child .urgent",
  },
  "two new": {
    at: "/inbox",
    isScripted: true,
    loaded: async (page) => {
      await isLive(page);
      await setVisibility(page, "hidden");
    },
    then: async () => [await note("one"), await note("two")],
    reach: (page) => setVisibility(page, "visible"),
    shows: (page) => page.locator("#inbox-new button").filter({ hasText: /^2 / }),
  },
  "tells here": {
    at: "/inbox",
    isScripted: true,
    prepare: answersNotices("granted"),
    reach: (page) => page.locator("#inbox-tell").click(),
    shows: '#inbox-tell[aria-pressed="true"]',
  },
  "may not tell here": {
    at: "/inbox",
    isScripted: true,
    prepare: answersNotices("denied"),
    reach: (page) => page.locator("#inbox-tell").click(),
    shows: "#inbox-tell-note:not(:empty)",
  },
  "not live": {
    at: "/inbox",
    isScripted: true,
    prepare: (page) =>
      page.addInitScript(() => {
        window.EventSource = class extends window.EventSource {
          constructor(...args) {
            super(...args);
            window.opened = this;
          }
        };
      }),
    loaded: isLive,
    reach: async (page) => {
      await page.route("**/v1/events*", (route) => route.abort());
      await page.evaluate(() => {
        window.opened.close();
        window.opened.dispatchEvent(new Event("error"));
      });
    },
    shows: (page) => page.locator("#inbox-state").filter({ hasText: /\d\d:\d\d:\d\d UTC/ }),
    noise: /net::ERR_FAILED/,
  },
  "rows of the past": {
    ask: async () => [await note("decided elsewhere"), await note("withdrawn elsewhere")],
    at: "/inbox",
    isScripted: true,
    loaded: isLive,
    then: async ([first, second]) => {
      await approve(first);
      await cancel(second.task);
    },
    reach: async (page, both) => {
      for (const asked of both) await row(page, asked).locator(".told:not(:empty)").waitFor();
    },
    shows: (page, [first]) => row(page, first).locator(".told"),
  },
  "a row expires": {
    at: "/inbox",
    isScripted: true,
    // A request that has expired before the page is loaded has no row.
    loaded: async (page) => {
      let brief;
      do {
        brief = await note("brief");
        await page.reload();
      } while ((await row(page, brief).count()) === 0);
    },
    shows: (page) => page.locator("#inbox-rows > li.over .told").filter({ hasText: /^Expired|^已过期/ }),
  },
};

const tree = () => asks("clerk", JSON.stringify({ task: 'write_note\n{"text":"below"}' }));

const tasks = {
  tasks: { at: "/tasks", shows: ".tasks tbody tr" },
  "tasks that fit": { at: "/tasks?status=Completed", shows: ".filter[open] ~ .tasks" },
  "a task waits": {
    ask: refund,
    at: ({ task }) => `/tasks/${task.task_id}`,
    shows: "#task-questions a",
  },
  "a task runs": {
    ask: async () => {
      const before = ran.length;
      const task = await (await sent("/v1/tasks", { input: 'hang\n{"order":1}' })).json();
      await eventually(() => ran.length > before, "the call of the tool");
      return task;
    },
    at: (task) => `/tasks/${task.task_id}`,
    shows: "main:not(:has(#task-questions > *)) #task-cancel",
    end: async (task) => {
      release();
      assert.equal((await ended(task)).status, "Completed");
    },
  },
  "a task has ended": {
    ask: async () => {
      const asked = await refund();
      await approve(asked);
      return ended(asked.task);
    },
    at: (task) => `/tasks/${task.task_id}`,
    shows: "main:not(:has(#live)) .timeline > li",
  },
  "earlier events": {
    ask: refund,
    at: ({ task }) => `/tasks/${task.task_id}?before=3`,
    shows: ".timeline > li:nth-child(2):last-child",
  },
  "a damaged entry": {
    ask: async () => {
      const asked = await refund();
      await approve(asked);
      const task = await ended(asked.task);
      execute("update agent_task_item set body = 'x' where task_id = ? and event_number in (3, 5)", task.task_id);
      return task;
    },
    at: (task) => `/tasks/${task.task_id}`,
    shows: (page) => page.locator(".timeline > li").filter({ hasText: /This entry cannot be read\.|此记录无法读取。/ }),
  },
  "a tree": {
    ask: tree,
    at: ({ task }) => `/tasks/${task.task_id}`,
    shows: ".timeline > li.below",
  },
  "a part of a tree": {
    ask: tree,
    at: ({ request: asked }) => `/tasks/${asked.task_id}`,
    shows: (page, { task }) => page.locator(`main p > a[href$="/tasks/${task.task_id}"]`),
  },
  "no such task": { at: "/tasks/019a4b2c-7000-7000-8000-000000000001", status: 404, shows: "h1" },
};

// A form of an agent with every type of field.
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

const open = (ask, shows = "#answers button") => ({
  ask,
  at: ({ request: asked }) => asked.url,
  shows,
});

const closed = (close, shows = "#headline:not([hidden])") => ({
  ask: after(refund, close),
  at: ({ request: asked }) => asked.url,
  shows: `main:not(:has(#answers button)) ${shows}`,
});

const questions = {
  approval: open(refund),
  "several calls": open(() => refunds(30, 31, 32, 33)),
  "eight calls": open(() => says("Eight parcels came broken."), ".calls tfoot"),
  "a call beside": open(() => says("Beside the refund, look it up."), ".context"),
  "a command": open(() => asks("clean_up", '{"command":"rm -rf /var/tmp/reports"}'), ".shell"),
  "a warning": open(() => note("pay \u202ebob"), ".warnings"),
  "may be remembered": open(() => note("remember the milk"), "#answers input[type=checkbox], #answers summary"),
  "partly answered": open(after(() => refunds(40, 41, 42, 43), ({ request: asked }) =>
    sent(`/resume/${asked.request_id}`, { decisions: { [asked.tool_calls[0].tool_call_id]: { action: "approve" } } }),
  ), "#answers fieldset, #answers button"),
  guidance: open(() => asks("request_human_guidance", '{"question":"What now?","options":["wait","go on"]}')),
  form: open(() => asks("request_human_guidance", JSON.stringify({ question: "Which?", form: everyField }))),
  confirmation: open(() => asks("request_confirmation", '{"action":"Close it.","risks":["It may be reopened."]}')),
  credentials: open(() => asks("comment_ticket", '{"text":"hello"}')),
  external: open(() => asks("count_orders", '{"customer":4}')),
  reconcile: open(() => asks("lose", '{"order":1}')),
  elicitation: open(() => asks("book_table", '{"people":4}')),
  approved: closed(async (asked) => {
    await approve(asked);
    await ended(asked.task);
  }),
  rejected: closed(async ({ task, request: asked }) => {
    await sent(`/resume/${asked.request_id}/reject`, { reason: "the wrong customer" });
    await ended(task);
  }),
  withdrawn: closed(({ task }) => cancel(task)),
  expired: {
    ask: after(() => note("brief"), ({ request: asked }) =>
      eventually(async () => (await request(asked.request_id)).status === "expired", "the deadline"),
    ),
    at: ({ request: asked }) => asked.url,
    shows: "#headline:not([hidden])",
  },
  "the approve page": { ...open(refund), at: ({ request: asked }) => asked.approval_url },
  "the reject page": { ...open(refund), at: ({ request: asked }) => asked.rejection_url },
  "the approve page of another kind": {
    ...open(() => asks("look_up", '{"what":"it"}'), "main:not(:has(#answers button))"),
    at: ({ request: asked }) => `${asked.url}/approve`,
  },
  "no such question": { at: "/resume/0", status: 404, shows: "h1" },
  "no sign-in": { at: "/sign-in", shows: "h1" },
};

const remembered = {
  remembered: {
    ask: async () => {
      const asked = await note("remember the bread");
      await sent(`/resume/${asked.request.request_id}`, { action: "approve", remember: { for: "owner", expires_in: "4h" } });
    },
    at: "/grants",
    shows: "form[action*='grants'] button",
  },
  "not remembered": {
    ask: async () => {
      const { grants } = await (await fetch(`${service}/v1/grants`)).json();
      for (const { grant_id: id } of grants) await fetch(`${service}/v1/grants/${id}`, { method: "DELETE" });
    },
    at: "/grants",
    shows: "main:not(:has(form[action*='grants'])) li",
  },
};

// States with more than a thousand open requests. A page of the inbox has 50 rows, and its count
// stops at 1,000.
const many = {
  "a thousand wait": {
    ask: async () => {
      for (let times = 0; times < 63; times += 1) await says("sixteen");
    },
    at: "/inbox",
    reach: async (page) => {
      const isScripted = await page.evaluate(() => !document.getElementById("inbox-live").hidden);
      if (isScripted) assert.match(await page.title(), /^\(1,000\+\) /);
    },
    shows: (page) => page.locator("#open-heading").filter({ hasText: /^1,000\+$/ }),
  },
  "the next page": {
    ask: async () => /id="inbox-next" href="([^"]+)"/.exec(await (await fetch(`${service}/inbox`)).text())[1],
    at: (next) => next,
    shows: '#inbox-rows + p > a[href$="/inbox"]',
  },
};

await inBrowser(async (browser) => {
  for (const states of [empty, inbox, tasks, questions, remembered, many]) await inEveryLook(browser, states);
  hadEveryLook(2);
  console.log("browser: every state was readable in every look");
});
