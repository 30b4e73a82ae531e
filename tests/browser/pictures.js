// Takes the pictures of docs/pages.md. Run: node pictures.js URL CHROMIUM TOOL_PORT FOLDER
// Environment: the keys ALICE_KEY, BOB_KEY and DANA_KEY. Bob and Dana are in the group finance. SEALING_KEY is the
// sealing key, LINK the program that makes links.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import { inBrowser, newPage, says, send, service } from "./harness.js";

const { ALICE_KEY, BOB_KEY, DANA_KEY, SEALING_KEY, LINK } = process.env;
const folder = process.argv[5];
const as = (key) => ({ authorization: `Bearer ${key}`, "content-type": "application/json", prefer: "wait=10" });

const asks = async (input) => (await says(input, as(ALICE_KEY))).request;

const approve = (key, { request_id }) => fetch(`${service}/resume/${request_id}/approve`, { method: "POST", headers: as(key) });

// Approves a request, and remembers the approval for later calls under the same rule.
async function remember(key, { request_id }) {
  const decision = { action: "approve", remember: { for: "owner", expires_in: "4h" } };
  const reply = await fetch(`${service}/resume/${request_id}`, { method: "POST", headers: as(key), body: JSON.stringify(decision) });
  assert.equal(reply.status, 200, await reply.text());
}

const linkTo = (user, { request_id }) =>
  `${service}/l/${execFileSync("python3", [LINK, SEALING_KEY, "default", user, request_id]).toString().trim()}`;

async function openPage(browser, key, width, height) {
  const opened = await newPage(browser, { viewport: { width, height }, locale: "en-GB", timezoneId: "Europe/Berlin" });
  await opened.page.goto(`${service}/sign-in`);
  await opened.page.locator("#key").fill(key);
  await send(opened.page, opened.page.locator('form[action$="/sign-in"] button'));
  return opened;
}

fs.mkdirSync(folder, { recursive: true });
await inBrowser(async (browser) => {
  const refund = () => asks("Please refund 120 euros for order 17: the parcel came broken and the customer has waited for two weeks.");
  const payment = await asks("Please pay the invoice of Miller & Sons.");
  await approve(DANA_KEY, payment);
  const decided = await refund();
  await approve(BOB_KEY, decided);
  const open = await refund();
  const states = {
    request: [open],
    change: [open, async (page) => page.locator("summary").filter({ hasText: "Change…" }).click(), 1000],
    several: [await asks("Eight parcels came broken. Please refund them all.")],
    "two-people": [payment],
    warning: [await asks("Please pay the invoice in my mail, it is urgent."), undefined, 1000],
    command: [await asks("The disk is full. Make room, please.")],
    decided: [decided],
  };
  const owners = {
    question: [await asks("What about the order of Mrs Jones?"), undefined, 900],
    unknown: [await asks("Please send the letter for order 17."), undefined, 1000],
  };
  const take = async (page, name, [{ request_id }, then]) => {
    await page.goto(`${service}/resume/${request_id}`);
    await page.waitForFunction(() => document.querySelector("#live [aria-busy]").getAttribute("aria-busy") === "false");
    await then?.(page);
    await page.screenshot({ path: `${folder}/${name}.png` });
  };
  for (const [key, all] of [[BOB_KEY, states], [ALICE_KEY, owners]]) {
    const { context, page, wrong } = await openPage(browser, key, 860, 800);
    for (const [name, state] of Object.entries(all)) {
      await page.setViewportSize({ width: 860, height: state[2] ?? 800 });
      await take(page, name, state);
    }
    assert.deepEqual(wrong, []);
    await context.close();
  }
  const { context, page } = await openPage(browser, BOB_KEY, 390, 844);
  await take(page, "phone", [open]);
  await page.goto(linkTo("bob", open));
  await page.screenshot({ path: `${folder}/link.png` });
  await remember(BOB_KEY, await asks("Find out what fills the disk."));
  await page.setViewportSize({ width: 860, height: 700 });
  for (const name of ["inbox", "grants"]) {
    await page.goto(`${service}/${name}`);
    await page.screenshot({ path: `${folder}/${name}.png` });
  }
  await context.close();
});
