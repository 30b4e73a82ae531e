// Tests a person with a browser and a key, in a service with accounts. Run: node people.js URL
// CHROMIUM TOOL_PORT
// Environment: see accounts.js.

import assert from "node:assert/strict";
import { ALICE_KEY, BOB_KEY, EVE_KEY, asked, call, cancel, ended, signIn } from "./accounts.js";
import { inBrowser, main, newPage, ran, send, service } from "./harness.js";

async function decides(browser, javaScriptEnabled, locale) {
  const { task, request } = await asked();
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled, locale });
  await page.goto(request.url);
  assert.equal(new URL(page.url()).pathname, "/sign-in", "a signed-out user is asked for a key first");
  assert.ok(!(await main(page)).includes("refund_payment"), "and sees nothing of the request");
  assert.equal((await signIn(page, "not-a-key-that-is-known")).status(), 401);
  assert.equal((await signIn(page, ALICE_KEY)).status(), 303);
  assert.equal(page.url(), request.url, "sign-in leads back to the request");
  assert.match(await main(page), /alice/);
  const before = ran.length;
  assert.equal((await send(page, page.locator('.decide button:not(.no)'))).status(), 303);
  assert.equal(await page.locator('form[action*="/resume/"] button').count(), 0, "nothing is left to decide");
  assert.equal((await ended(task)).status, "Completed");
  assert.equal(ran.length, before + 1, "it ran once");
  const [cookie] = await context.cookies();
  assert.equal(cookie.name, "holdpoint_session");
  assert.ok(cookie.httpOnly && cookie.sameSite === "Lax");
  await send(page, page.locator('form[action$="/sign-out"] button'));
  assert.deepEqual(await context.cookies(), []);
  await page.goto(request.url);
  assert.equal(new URL(page.url()).pathname, "/sign-in", "the session is over");
  assert.deepEqual(wrong, []);
  await context.close();
}

// A user with the wrong account does not see the request. The page names the account. After a
// sign-in with another account, the same page opens.
async function somebodyElseSeesNothing(browser, javaScriptEnabled, locale) {
  const other = { "en-US": "Sign in as another user", "zh-CN": "以其他用户身份登录" }[locale];
  const { request } = await asked();
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled, locale });
  await page.goto(request.url);
  assert.equal((await signIn(page, EVE_KEY)).status(), 303);
  assert.ok(!(await main(page)).includes("refund_payment"));
  assert.equal(await page.locator('form[action*="/resume/"]').count(), 0);
  assert.match(await main(page), /eve/);
  await page.getByRole("link", { name: other }).click();
  assert.match(await main(page), /eve/);
  assert.equal((await signIn(page, ALICE_KEY)).status(), 303);
  assert.equal(page.url(), request.url);
  assert.match(await main(page), /refund_payment/);
  assert.deepEqual(wrong, []);
  await context.close();
}

// Bob signs in in another tab while Alice's page is open. The form of her page does not answer for
// him. The question is for both.
async function anotherUserSignsIn(browser, javaScriptEnabled) {
  const asking = await asked('pay_supplier\n{"name":"Miller","amount":120}', EVE_KEY);
  const { request } = asking;
  const approvedBy = async () => {
    const { tool_calls: calls } = await call(ALICE_KEY, "GET", `/resume/${request.request_id}`);
    return calls[0].approvals.map(({ by }) => by);
  };
  const { context, page, wrong } = await newPage(browser, { javaScriptEnabled });
  await page.goto(request.url);
  assert.equal((await signIn(page, ALICE_KEY)).status(), 303);
  const tab = await context.newPage();
  await tab.goto(`${service}/sign-in`);
  assert.equal((await signIn(tab, BOB_KEY)).status(), 303);
  const approve = page.locator(".decide button:not(.no)");
  assert.equal((await send(page, approve)).status(), 403);
  assert.match(await main(page), /Signed in as bob/);
  assert.deepEqual(await approvedBy(), []);
  await page.getByRole("link", { name: "Load the page again" }).click();
  await page.waitForURL(request.url);
  assert.equal((await send(page, approve)).status(), 303);
  assert.deepEqual(await approvedBy(), ["bob"]);
  await cancel(asking, EVE_KEY);
  assert.deepEqual(wrong, []);
  await context.close();
}

await inBrowser(async (browser) => {
  await decides(browser, true, "en-US");
  await decides(browser, true, "zh-CN");
  await decides(browser, false, "en-US");
  await somebodyElseSeesNothing(browser, true, "en-US");
  await somebodyElseSeesNothing(browser, false, "en-US");
  await somebodyElseSeesNothing(browser, true, "zh-CN");
  await anotherUserSignsIn(browser, true);
  await anotherUserSignsIn(browser, false);
  console.log("browser: people with a key did as they should");
});
