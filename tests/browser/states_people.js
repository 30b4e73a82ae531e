// Checks every state of the pages of people with keys, of calls at a gate, and of sealed links in
// every look. Run: node states_people.js URL CHROMIUM TOOL_PORT
// Environment: see accounts.js.

import assert from "node:assert/strict";
import { ALICE_KEY, BOB_KEY, EVE_KEY, MUTE_KEY, OPS_KEY, approve, as, asked, call, cancel, ended, linkTo, proposed, signIn } from "./accounts.js";
import { after, hadEveryLook, inEveryLook } from "./looks.js";
import { eventually, inBrowser, isLive, send } from "./harness.js";

const PAYMENT = 'pay_supplier\n{"name":"Miller","amount":120}';
const at = ({ request }) => request.url;

const strangers = {
  "not signed in": { at: "/inbox", shows: "#key" },
  "a wrong key": {
    at: "/sign-in",
    reach: async (page) => assert.equal((await signIn(page, "not-a-key-that-is-known")).status(), 401),
    shows: "#key[aria-invalid]",
  },
};

// Two people of finance release a payment. Alice is one of them.
const alice = {
  "signed in": { at: "/sign-in", shows: 'form[action$="/sign-out"] button' },
  "her inbox": { ask: () => asked(), at: "/inbox", shows: 'footer form[action$="/sign-out"]' },
  "answered, and others wait": {
    ask: () => asked(PAYMENT, BOB_KEY),
    at: "/inbox",
    isScripted: true,
    loaded: isLive,
    then: (payment) => approve(payment),
    shows: (page) => page.locator(".over .told").filter({ hasText: /^You have answered|^您已答复/ }),
  },
  "waits for another": { at: "/inbox/decided", shows: (page) => page.locator(".rows > li p").filter({ hasText: /waits for one more|还需一人/ }) },
  "one has approved": {
    ask: after(() => asked(PAYMENT, EVE_KEY), (payment) => approve(payment, BOB_KEY)),
    at,
    shows: "main:has(#answers button) .approvals li",
  },
  "she has approved": {
    ask: after(() => asked(PAYMENT, BOB_KEY), (payment) => approve(payment)),
    at,
    shows: "main:not(:has(#answers button)) .approvals li",
  },
  "others have decided": {
    ask: after(() => asked(PAYMENT, EVE_KEY), ({ request }) =>
      call(BOB_KEY, "POST", `/resume/${request.request_id}/reject`, { reason: "the wrong supplier" }),
    ),
    at: "/inbox/decided?all=1",
    shows: (page) => page.locator(".rows > li .status").filter({ hasText: /bob/ }),
  },
};

const eve = {
  "for others": { ask: () => asked(PAYMENT, EVE_KEY), at, shows: "main:not(:has(#answers button)) .approvals" },
  "the question of another": { ask: () => asked(), at, status: 403, shows: "h1" },
  "the task of another": { ask: () => asked(), at: ({ task }) => `/tasks/${task.task_id}`, status: 403, shows: "h1" },
};

// An admin sees the tasks of all users, each with its owner.
const ops = {
  "everybody's tasks": {
    ask: () => asked(PAYMENT, EVE_KEY),
    at: "/tasks",
    shows: (page) => page.locator(".tasks td bdi").filter({ hasText: /^eve$/ }),
  },
};

const mute = { "may not read": { at: "/inbox", status: 403, shows: "h1" } };

async function saysThatItWaits({ url }) {
  const reply = await fetch(url, { headers: { ...as(ALICE_KEY), accept: "text/html", "accept-language": "en" } });
  return (await reply.text()).includes("The agent waits now.");
}

// Returns the state of a page with a call at the gate. If `wait` is given, the agent waits for the
// decision. Otherwise the agent has gone.
const proposal = (tool, args, wait) => ({
  ask: async () => {
    const key = crypto.randomUUID();
    const propose = (wait) => proposed(key, tool, args, { wait, context: "The customer <b>asked</b> for it." });
    const { request, task_id } = await propose(0);
    const verdict = wait && propose(wait);
    if (wait) await eventually(() => saysThatItWaits(request), "the agent's wait");
    return { request, task: { task_id }, verdict };
  },
  at,
  shows: "main:has(#answers button):has(figure.said) .asker",
  end: async (made) => {
    await cancel(made);
    await made.verdict;
  },
});

// The calls differ from those of gate.js, because a rejection there would apply to equal calls
// here.
const gate = {
  "an agent waits": proposal("refund_payment", '{"order": 27, "amount": 120}', 120),
  "an agent waits for a permit": proposal("deploy", '{"version": 27}', 120),
  "an agent has gone": proposal("label_order", '{"order": 28}'),
  "an agent has gone without a permit": proposal("read_log", '{"server": 29}'),
};

// Returns the state of a page that a sealed link opens. Such a page has no script.
const linked = (ask, shown, more) => ({ ask, at: ({ request }) => linkTo(request), shows: `body:not(:has(script)) ${shown}`, ...more });

// `then` closes the request. The person presses the button after that, so the answer is too late.
const late = (then) =>
  linked(() => asked(), "h1", {
    then,
    reach: async (page) => assert.equal((await send(page, page.locator(".decide button:not(.no)"))).status(), 409),
  });

const GUIDANCE = 'request_human_guidance\n{"question":"What now?","options":["wait","go on"]}';
const CONFIRMATION = 'request_confirmation\n{"action":"Close it.","risks":["It may be reopened."]}';

// Returns a function that answers the agent's question and waits for the end of the task.
const respond = (response) => async ({ task, request }) => {
  await call(ALICE_KEY, "POST", `/resume/${request.request_id}`, { action: "respond", response });
  await ended(task);
};

const links = {
  open: linked(() => asked(), "form button"),
  "for a key": linked(() => asked('request_credentials\n{"service":"jira","reason":"To comment."}'), "main:not(:has(form)) h1"),
  "a result for a key": linked(() => asked('count_orders\n{"customer":4}'), "main:not(:has(form)) p > strong + a"),
  "an outcome for a key": linked(() => asked('lose\n{"order":1}'), "main:not(:has(form)) p > strong + a"),
  guidance: linked(() => asked(GUIDANCE), 'form:has(input[value="respond"]) button'),
  confirmation: linked(() => asked(CONFIRMATION), 'form:has(input[value="respond"]) button[name="confirmed"]'),
  "guidance was given": linked(after(() => asked(GUIDANCE), respond({ answer: "wait" })), "main:not(:has(form)) #headline:not([hidden])"),
  "it was confirmed": linked(after(() => asked(CONFIRMATION), respond({ confirmed: true })), "main:not(:has(form)) #headline:not([hidden])"),
  // These pages have a line that asks for a sign-in in place of the form.
  "for no link": linked(() => asked('write_note\n{"text":"for no link"}'), "main:not(:has(form, .approvals)) p > strong + a"),
  "for two without a link": linked(() => asked('write_note\n{"text":"for two"}', BOB_KEY), "main:not(:has(form)):has(.approvals) p > strong + a"),
  decided: linked(after(asked, async (asking) => {
    await approve(asking);
    await ended(asking.task);
  }), "main:not(:has(form)) #headline:not([hidden])"),
  answered: linked(after(() => asked(PAYMENT, BOB_KEY), (payment) => approve(payment)), "main:not(:has(form)) .approvals li"),
  expired: linked(after(() => asked('write_note\n{"text":"brief"}'), ({ request }) => {
    const isExpired = async () => (await call(ALICE_KEY, "GET", `/resume/${request.request_id}`)).status === "expired";
    return eventually(isExpired, "the deadline");
  }), "main:not(:has(form)) #headline:not([hidden])"),
  withdrawn: linked(after(asked, (asking) => cancel(asking)), "main:not(:has(form)) #headline:not([hidden])"),
  over: { ...linked(() => asked(), "main:not(:has(form)) h1", { status: 410 }), at: ({ request }) => linkTo(request, { hours: -1 }) },
  "no link": {
    ...linked(() => asked(), "main:not(:has(form)) h1", { status: 404 }),
    at: ({ request }) => linkTo(request, { sealingKey: Buffer.alloc(32, 7).toString("base64") }),
  },
  "of a person who has left": {
    ...linked(() => asked(), "main:not(:has(form)) h1", { status: 404 }),
    at: ({ request }) => linkTo(request, { user: "dave" }),
  },
  "decided meanwhile": late((asking) => approve(asking)),
  "withdrawn meanwhile": late((asking) => cancel(asking)),
};

await inBrowser(async (browser) => {
  await inEveryLook(browser, { ...strangers, ...links });
  await inEveryLook(browser, { ...alice, ...gate }, ALICE_KEY);
  await inEveryLook(browser, eve, EVE_KEY);
  await inEveryLook(browser, ops, OPS_KEY);
  await inEveryLook(browser, mute, MUTE_KEY);
  hadEveryLook(1);
  console.log("browser: every state of people, gates and links was readable in every look");
});
