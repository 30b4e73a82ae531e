// Checks the states of the pages in every look: in both languages, with and without the pages' own
// scripts, on a desktop and on a phone, in light and dark mode.

import assert from "node:assert/strict";
import fs from "node:fs";
import { signIn } from "./accounts.js";
import { axe, fits, readable, service, shot, watched } from "./harness.js";

const DESKTOP = { width: 1280, height: 800 };
const PHONE = { width: 390, height: 844 };
// The narrowest window in which a page need not scroll sideways (WCAG 2.2, 1.4.10).
const NARROW = { width: 320, height: 640 };

const LOOKS = {
  desktop: { viewport: DESKTOP, colorScheme: "light" },
  "desktop, dark": { viewport: DESKTOP, colorScheme: "dark" },
  phone: { viewport: PHONE, colorScheme: "light" },
  "phone, dark": { viewport: PHONE, colorScheme: "dark" },
};

// Loading a page and running axe are slow. So an ordinary run checks each state in one of the 16
// looks: the place of the state among all states gives the language of the simulated reader, the
// page's scripts, the size and the mode, so 16 states in a row have all looks. If EVERY_LOOK is set,
// four readers check each state in every look.
const LANGUAGES = [
  { name: "en", locale: "en-US", lang: "en" },
  { name: "zh", locale: "zh-CN", lang: "zh-Hans" },
];
const READERS = process.env.EVERY_LOOK ? LANGUAGES.flatMap((reader) => [reader, reader]) : LANGUAGES;

// Returns the readers of the state at this place. They see it with or without the page's scripts,
// and in some of the looks.
function readersAt(place, readers) {
  const looks = Object.keys(LOOKS);
  if (process.env.EVERY_LOOK) return readers.map((reader, at) => Object.assign(reader, { hasScripts: at % 2 === 0, looks }));
  const drawn = { hasScripts: (place >> 1) % 2 === 0, looks: [looks[(place >> 2) % looks.length]] };
  return [Object.assign(readers[place % readers.length], drawn)];
}

// The place of the next state, and how many states were checked in each look so far.
let place = 0;
const checked = new Map();

// Returns the names in a part of the OpenAPI document: of members, parameters, values and operations.
function namesIn(part) {
  if (part === null || typeof part !== "object") return [];
  const { example, examples, ...others } = part;
  const values = Array.isArray(part.enum) ? part.enum : [part.const];
  const names = [...Object.keys(part.properties ?? {}), ...values, part.operationId, part.in && part.name];
  return [...names, ...Object.values(others).flatMap(namesIn)];
}

// The names of the API that are no words of a language (`request_withdrawn`), and its paths.
const API = (() => {
  const names = namesIn(JSON.parse(fs.readFileSync("openapi/openapi.json", "utf8")));
  const marked = new Set(names.filter((name) => typeof name === "string" && name.includes("_")));
  assert.ok(["request_withdrawn", "tool_call_id", "get_inbox"].every((name) => marked.has(name)), "the names of the API");
  return `\\b(?:${[...marked].map((name) => name.replaceAll(".", "\\.")).join("|")})\\b|/resume/|/v1/`;
})();

// Asserts that a page speaks to a person: no text names a part of the API, except in the details and
// in the section for support.
async function isForPeople(page, name) {
  const named = await page.evaluate((pattern) => {
    const parts = [...document.querySelectorAll("details")];
    const isTechnical = (part) => /^(Details|For support|详细信息|技术支持信息)$/.test(part.querySelector("summary")?.textContent.trim());
    const technical = parts.filter(isTechnical);
    const texts = [document.title];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const { data, parentElement: element } = walker.currentNode;
      if (element.checkVisibility() && !technical.some((part) => part.contains(element))) texts.push(data);
    }
    return texts.filter((text) => new RegExp(pattern).test(text));
  }, API);
  assert.deepEqual(named, [], `${name} names parts of the API`);
}

async function signedIn(browser, reader, key) {
  const context = await browser.newContext({ locale: reader.locale, timezoneId: "UTC", viewport: DESKTOP });
  await context.addInitScript({ content: axe });
  const page = await context.newPage();
  if (key) {
    await page.goto(`${service}/sign-in`);
    assert.equal((await signIn(page, key)).status(), 303);
  }
  const signed = { ...reader, context, page, wrong: watched(page) };
  // Replaces only the pages' own scripts. In a page without any JavaScript, axe could not run.
  const without = { contentType: "text/javascript", body: "" };
  await context.route("**/*.js", (route) => (signed.hasScripts ? route.continue() : route.fulfill(without)));
  return signed;
}

// Opens the page of a state. A new page of the browser is slow, so all states without `prepare`
// share a page.
async function opened(reader, name, state, made) {
  const { context, page, wrong } = reader;
  const seenAs = `${reader.name}, with${reader.hasScripts ? "" : "out"} scripts`;
  const visit = { page, wrong, looks: reader.looks, name: `${name}, ${seenAs}`, seenAs, isOwn: Boolean(state.prepare) };
  if (visit.isOwn) {
    visit.page = await context.newPage();
    visit.wrong = watched(visit.page);
    await state.prepare(visit.page, made);
  }
  const at = typeof state.at === "function" ? state.at(made) : state.at;
  const answer = await visit.page.goto(new URL(at, service).href);
  assert.equal(answer.status(), state.status ?? 200, visit.name);
  assert.equal(await visit.page.locator("html").getAttribute("lang"), reader.lang, visit.name);
  const isFollowed = reader.hasScripts && (await visit.page.locator("#live").count()) > 0;
  if (isFollowed) await visit.page.locator('#live:not([hidden]) [aria-busy="false"]').waitFor({ state: "attached" });
  await state.loaded?.(visit.page, made);
  return visit;
}

async function looksRight({ page, wrong, looks, name, seenAs, isOwn }, state, made) {
  await state.reach?.(page, made);
  const shown = (typeof state.shows === "string" ? page.locator(state.shows) : state.shows(page, made)).first();
  await shown.waitFor();
  for (const look of looks) {
    const { viewport, colorScheme } = LOOKS[look];
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize(viewport);
    // On a phone, opens the folded parts of the page, so that they are checked, too.
    if (viewport === PHONE) await page.evaluate(() => document.querySelectorAll("details").forEach((folded) => (folded.open = true)));
    await readable(page, `${name}, ${look}`);
    await isForPeople(page, `${name}, ${look}`);
    await shot(page, `${name}, ${look}`);
    const seen = `${seenAs}, ${look}`;
    checked.set(seen, (checked.get(seen) ?? 0) + 1);
  }
  await page.setViewportSize(NARROW);
  await fits(page, `${name}, narrow`);
  assert.ok(await shown.isVisible(), `${name} has stayed in its state`);
  const isExpected = (said) => said.includes(`status of ${state.status}`) || state.noise?.test(said);
  assert.deepEqual(wrong.splice(0).filter((said) => !isExpected(said)), [], name);
  if (isOwn) return page.close();
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize(DESKTOP);
}

// Returns a function that creates a waiting task with `ask`, and then calls `act` with that task.
export const after = (ask, act) => async () => {
  const asking = await ask();
  await act(asking);
  return asking;
};

// Asserts that at least `states` states were checked in each of the 16 looks.
export function hadEveryLook(states) {
  assert.equal(checked.size, 2 * LANGUAGES.length * Object.keys(LOOKS).length, [...checked.keys()].join("; "));
  for (const [look, times] of checked) assert.ok(times >= states, `${look} was checked in ${times} states`);
}

// Brings pages into each state, and checks them in the looks of its place. A state has:
// `ask`: brings the service into the state; its result is passed to the other functions;
// `at`: the address of the page, or a function that returns it;
// `status`: the status of the page's response, by default 200;
// `prepare`: prepares a new page before it is loaded;
// `loaded`: is called with each loaded page;
// `then`: is called once, when all pages are loaded;
// `reach`: brings a page into the state;
// `shows`: the selector of the element by which the state is known, or a function that returns it;
// `end`: is called once, after the checks;
// `isScripted`: whether the state is the work of the page's script;
// `noise`: a pattern of the browser's expected complaints.
export async function inEveryLook(browser, states, key) {
  const all = await Promise.all(READERS.map((reader) => signedIn(browser, reader, key)));
  for (const [name, state] of Object.entries(states)) {
    const made = await state.ask?.();
    const readers = readersAt(place, all);
    place += 1;
    for (const reader of readers) reader.hasScripts ||= Boolean(state.isScripted);
    const visits = await Promise.all(readers.map((reader) => opened(reader, name, state, made)));
    await state.then?.(made);
    await Promise.all(visits.map((visit) => looksRight(visit, state, made)));
    await state.end?.(made);
  }
  await Promise.all(all.map(({ context }) => context.close()));
}
