// A Teams workflow. It parses and renders the card of one message with the library `adaptivecards`.
// The card must give no warning, have no unknown member, and have one action, which opens the page
// of the request.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { createRequire } from "node:module";

// The library renders into the document of a browser. The types of `happy-dom` need the types of a
// newer Node, so `happy-dom` is imported without its types.
const browser: string = "happy-dom";
const { Window } = await import(browser);
const window = new Window();
const { document, HTMLElement, HTMLButtonElement, MutationObserver } = window;
Object.assign(globalThis, { window, document, HTMLElement, HTMLButtonElement, MutationObserver });
// The build for bundlers, which the package names first, cannot be imported by Node.
const { AdaptiveCard, SerializationContext } = createRequire(import.meta.url)("adaptivecards/dist/adaptivecards.js");

type Message = { type: string; attachments: { contentType: string; content: { version: string } }[] };

let cards = 0;

function check(message: Message): void {
  assert.equal(message.type, "message");
  const [attachment, ...others] = message.attachments;
  assert(attachment && others.length === 0);
  assert.equal(attachment.contentType, "application/vnd.microsoft.card.adaptive");
  assert.equal(attachment.content.version, "1.4");
  const context = new SerializationContext();
  const card = new AdaptiveCard();
  card.parse(attachment.content, context);
  assert.equal(context.eventCount, 0);
  assert.deepEqual(card.validateProperties().validationEvents, []);
  assert.deepEqual(JSON.parse(JSON.stringify(card.toJSON())), attachment.content);
  assert.equal(card.getActionCount(), 1);
  assert.match(card.getActionAt(0).url, /^http:\/\/127\.0\.0\.1:\d+\/resume\/[0-9a-f-]{36}$/);
  const rendered = card.render();
  assert.match(rendered.textContent, /A question waits: .+ \(demo\)/);
  assert.equal(rendered.querySelectorAll("a, img").length, 0);
  cards += 1;
}

const server = createServer((request, response) => {
  const chunks: Buffer[] = [];
  request.on("data", (chunk: Buffer) => chunks.push(chunk));
  request.on("end", () => {
    check(JSON.parse(Buffer.concat(chunks).toString("utf8")) as Message);
    response.writeHead(202).end();
    if (cards === 1) {
      console.log("adaptivecards: the card is rendered");
      server.close();
      server.closeAllConnections();
      window.happyDOM.abort();
    }
  });
});
server.listen(Number(process.env["TEAMS_PORT"]), "127.0.0.1");
