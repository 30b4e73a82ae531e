// Runs the TypeScript examples with scripted models. Each example makes an approved, an allowed and
// a rejected refund.
import assert from "node:assert/strict";
import { MockLanguageModelV4 } from "ai/test";
import { Refused, guarded, hold } from "./hold.js";
import { ask } from "./vercel_agent.js";

const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
};

/** A model that asks for one refund and then ends. */
function scripted(amount: number) {
  let turn = 0;
  return new MockLanguageModelV4({
    doGenerate: async () => {
      turn += 1;
      const input = JSON.stringify({ order: 17, amount });
      const call = { type: "tool-call" as const, toolCallId: `v-${amount}`, toolName: "refund", input };
      const first = turn === 1;
      return {
        content: first ? [call] : [{ type: "text" as const, text: "Done." }],
        finishReason: { unified: first ? ("tool-calls" as const) : ("stop" as const), raw: undefined },
        usage,
        warnings: [],
      };
    },
  });
}

for (const [amount, expected] of [[15, /^Refunded 15/], [125, /^Refunded 125/], [999, /^Not run: .*no/]] as const) {
  const { steps, text } = await ask(scripted(amount), "Refund");
  const [result] = steps[0]?.toolResults ?? [];
  assert.match(String(result?.output), expected);
  assert.equal(text, "Done.");
}

let runs = 0;
const pay = ({ amount }: { amount: number }) => `${(runs += 1)} of ${amount}`;
assert.equal(await guarded("refund", { order: 1, amount: 126 }, "ts-1", pay), "1 of 126");
await assert.rejects(hold("refund", { order: 1, amount: 126 }, "ts-1"), Refused);
assert.match(await guarded("refund", { order: 1, amount: 999 }, "ts-2", pay), /^Not run/);
assert.equal(runs, 1);
const lost = () => {
  throw new Error("The connection was lost.");
};
await guarded("refund", { order: 3, amount: 127 }, "ts-3", lost);
assert.match(await guarded("refund", { order: 3, amount: 127 }, "ts-3", pay), /^Not run: .*Paid by hand\.$/);
assert.equal(runs, 1);
console.log("plain TypeScript and Vercel AI: allowed, approved, rejected");
