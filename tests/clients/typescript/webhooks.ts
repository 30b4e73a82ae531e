// A receiver of webhooks that verifies each message with the library `standardwebhooks`. Each
// message verifies under each of the two secrets. A message with one changed byte does not verify,
// and no message verifies six minutes later. Messages in brief and pings arrive at `/`, messages in
// full at `/full`, and reminders at `/reminders`. The program ends once it has one message of each
// expected kind, or with an error at the first message that is not as expected.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { Webhook } from "standardwebhooks";
import type { components } from "./schema.js";

type Message = components["schemas"]["WebhookMessage"];

const events = ["request.created", "request.decided", "task.paused", "task.completed"];
const expected = [
  ...[...events, "ping", "not ASCII", "sent again"].map((kind) => `/ ${kind}`),
  ...[...events, "not ASCII"].map((kind) => `/full ${kind}`),
  "/reminders request.waiting",
];
const secrets = [process.env["NEW_SECRET"] ?? "", process.env["OLD_SECRET"] ?? ""];
const seen = new Set<string>();
// The body of each message, by the message's path and id.
const bodies = new Map<string, string>();

// Checks that the id and the data are those of a ping, a message in full, a reminder, or a message
// in brief.
function checkContent(path: string, id: string, { type, data }: Message): void {
  if (type === "ping") {
    assert.match(id, /^ping_[0-9a-f]{32}$/);
    assert.equal(JSON.stringify([path, data]), '["/",{"target":"typescript"}]');
  } else if (path === "/full") {
    assert.match(id, /^evt_[0-9a-f]{32}_[0-9]+$/);
    const event = "event" in data && data.event;
    assert.deepEqual([event, "tenant" in data], [type, false]);
  } else if (!("tenant" in data)) {
    assert.fail(`${id} is not in brief`);
  } else if (path === "/reminders") {
    assert.equal(id, `tmr_${data.request?.request_id}_typescript-reminders`);
  } else {
    assert.match(id, new RegExp(`^evt_[0-9a-f]{32}_${data.event}$`));
    assert.equal(data.tenant, "default");
  }
}

function check(path: string, body: string, headers: Record<string, string>): void {
  const message = JSON.parse(body) as Message;
  for (const secret of secrets) {
    const webhook = new Webhook(secret);
    assert.deepEqual(webhook.verify(body, headers), message);
    assert.throws(() => webhook.verify(body.replace("t", "T"), headers));
    const late = String(Number(headers["webhook-timestamp"]) - 360);
    assert.throws(() => webhook.verify(body, { ...headers, "webhook-timestamp": late }));
  }
  const id = headers["webhook-id"] ?? "";
  checkContent(path, id, message);
  seen.add(`${path} ${message.type}`);
  if (/\P{ASCII}/u.test(body)) seen.add(`${path} not ASCII`);
  const earlier = bodies.get(`${path} ${id}`);
  if (earlier !== undefined) {
    // The script names the only message that arrives twice, before it sends this message again.
    assert.equal(id, readFileSync(process.env["TYPESCRIPT_RESENT"] ?? "", "utf8"), `${id} arrived twice`);
    assert.equal(body, earlier);
    seen.add(`${path} sent again`);
  }
  bodies.set(`${path} ${id}`, body);
}

const server = createServer((request, response) => {
  const chunks: Buffer[] = [];
  request.on("data", (chunk: Buffer) => chunks.push(chunk));
  request.on("end", () => {
    check(request.url ?? "", Buffer.concat(chunks).toString("utf8"), request.headers as Record<string, string>);
    response.writeHead(204).end();
    if (expected.every((kind) => seen.has(kind))) {
      console.log(`standardwebhooks for TypeScript: ${bodies.size} messages verified`);
      server.close();
      server.closeAllConnections();
    }
  });
});
server.listen(Number(process.env["TYPESCRIPT_PORT"]), "127.0.0.1");
