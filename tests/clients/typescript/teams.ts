// A Teams workflow. It parses and renders the card of each message with the library `adaptivecards`.
// A card must give no warning, have no unknown member, and have an action for each question, which
// opens the page of the request. The program ends once it has a card with several questions.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
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

// Checks a message. Returns the number of its questions.
function check(message: Message): number {
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
  const count: number = card.getActionCount();
  assert(count > 0);
  for (let at = 0; at < count; at += 1) {
    const { title, url } = card.getActionAt(at);
    assert.equal(title, count === 1 ? "Review" : `Review ${at + 1}`);
    assert.match(url, /^http:\/\/127\.0\.0\.1:\d+\/resume\/[0-9a-f-]{36}$/);
  }
  const rendered = card.render();
  const heading = count === 1 ? /A question waits: .+ \(demo\)/ : new RegExp(`${count} questions wait`);
  assert.match(rendered.textContent, heading);
  assert.equal(rendered.querySelectorAll("a, img").length, 0);
  cards += 1;
  return count;
}

const server = createServer((request, response) => {
  const chunks: Buffer[] = [];
  request.on("data", (chunk: Buffer) => chunks.push(chunk));
  request.on("end", () => {
    const questions = check(JSON.parse(Buffer.concat(chunks).toString("utf8")) as Message);
    response.writeHead(202).end();
    writeFileSync(process.env["TEAMS_POSTED"] ?? "", "");
    if (questions > 1) {
      console.log(`adaptivecards: ${cards} cards are rendered, the last with ${questions} questions`);
      server.close();
      server.closeAllConnections();
      window.happyDOM.abort();
    }
  });
});
server.listen(Number(process.env["TEAMS_PORT"]), "127.0.0.1");
