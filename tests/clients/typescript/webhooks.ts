// A receiver of webhooks that verifies each message with the library `standardwebhooks`. Each
// message verifies under each of the two secrets. A message with one changed byte does not verify,
// and no message verifies six minutes later. The program ends once it has one message of each
// expected type.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { Webhook } from "standardwebhooks";
import type { components } from "./schema.js";

type Message = components["schemas"]["WebhookMessage"];

const expected = ["request.created", "request.decided", "task.paused", "task.completed"];
const secrets = [process.env["NEW_SECRET"] ?? "", process.env["OLD_SECRET"] ?? ""];
const seen = new Set<string>();
const ids = new Set<string>();

function check(body: string, headers: Record<string, string>): void {
  for (const secret of secrets) {
    const webhook = new Webhook(secret);
    const message = webhook.verify(body, headers) as Message;
    assert.deepEqual(message, JSON.parse(body));
    assert.throws(() => webhook.verify(body.replace("t", "T"), headers));
    const late = String(Number(headers["webhook-timestamp"]) - 360);
    assert.throws(() => webhook.verify(body, { ...headers, "webhook-timestamp": late }));
    seen.add(message.type);
  }
  const id = headers["webhook-id"] ?? "";
  assert(!ids.has(id), "each message arrives once here");
  ids.add(id);
}

const server = createServer((request, response) => {
  const chunks: Buffer[] = [];
  request.on("data", (chunk: Buffer) => chunks.push(chunk));
  request.on("end", () => {
    check(Buffer.concat(chunks).toString("utf8"), request.headers as Record<string, string>);
    response.writeHead(204).end();
    if (expected.every((type) => seen.has(type))) {
      console.log(`standardwebhooks for TypeScript: ${ids.size} messages verified`);
      server.close();
      server.closeAllConnections();
    }
  });
});
server.listen(Number(process.env["TYPESCRIPT_PORT"]), "127.0.0.1");
