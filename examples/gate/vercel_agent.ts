// An agent of the Vercel AI SDK whose tools pass a gate: `execute` is wrapped.
import { generateText, type LanguageModel, stepCountIs, tool } from "ai";
import { z } from "zod";
import { guarded } from "./hold.js";

/** An `execute` that runs only when the gate allows its call. */
function gated<A extends object>(name: string, run: (args: A) => unknown) {
  return (args: A, { toolCallId }: { toolCallId: string }) => guarded(name, args, `vercel:${toolCallId}`, run);
}

export const refund = tool({
  description: "Pay an order back.",
  inputSchema: z.object({ order: z.number().int(), amount: z.number() }),
  execute: gated("refund", ({ order, amount }: { order: number; amount: number }) => `Refunded ${amount} for order ${order}.`),
});

export function ask(model: LanguageModel, prompt: string) {
  return generateText({ model, prompt, tools: { refund }, stopWhen: stepCountIs(5) });
}
