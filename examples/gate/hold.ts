// Asks a gate of Holdpoint before a tool runs. Needs nothing but Node.js; copy it into your agent.
import { randomUUID } from "node:crypto";
import { setTimeout } from "node:timers/promises";

const url = process.env.HOLDPOINT_URL ?? "http://127.0.0.1:8080";
const runner = randomUUID(); // this process: it alone gets a permit again whose answer was lost

/** The call must not run; the message is for the model. */
export class Refused extends Error {}

async function post(path: string, body: object, headers: Record<string, string> = {}) {
  const answer = await fetch(url + path, {
    method: "POST",
    body: JSON.stringify(body),
    headers: { Authorization: `Bearer ${process.env.HOLDPOINT_KEY}`, "Content-Type": "application/json", ...headers },
    signal: AbortSignal.timeout(60_000),
  });
  if (!answer.ok) throw new Error(`the gate answered ${answer.status}`); // nothing runs
  return answer.json() as Promise<any>;
}

/** The arguments to run with, or an error. The key names this call: the same key is the same call. */
export async function hold<A extends object>(tool: string, args: A, key: string, wait = 600_000): Promise<A> {
  for (const end = performance.now() + wait; ; await setTimeout(1000)) {
    const asked = performance.now();
    const headers = { "Idempotency-Key": key, "Holdpoint-Runner": runner, Prefer: "wait=45" };
    const call = await post("/v1/gate/calls", { tool, arguments: args, attach: true }, headers);
    // The result is of a person, or of a tool that Holdpoint runs.
    const told: string = call.result ? `The call has its result: ${call.result.content}` : call.message;
    if (call.decision === "allow") {
      const left = call.permit ? call.permit.expires_in_ms - (performance.now() - asked) : 0;
      if (left <= 0) throw new Refused(call.result ? told : `The call has already run, or its permit is over. ${told}`);
      return JSON.parse(call.arguments_text);
    }
    if (call.decision === "deny" || performance.now() > end) throw new Refused(told);
  }
}

/** Runs `run(args)` if the gate allows it, reports its outcome, and returns its text. */
export async function guarded<A extends object>(tool: string, args: A, key: string, run: (args: A) => unknown) {
  try {
    args = await hold(tool, args, key);
  } catch (error) {
    if (error instanceof Refused) return `Not run: ${error.message}`;
    throw error;
  }
  let content: string;
  let outcome = "succeeded";
  try {
    content = String(await run(args));
  } catch (error) {
    [content, outcome] = [String(error), "unknown"]; // it may have had an effect: a person is asked
  }
  await post("/v1/gate/outcomes", { key, outcome, content });
  return content;
}
