// The handlers of the conformance test (tests/conformance/README.md).

import { appendFileSync, existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import {
  awaitCompletion, cancel, defineHandler, permanent, retryAfter, runExecutor, snooze, type Context,
} from "tidewheel";

const gate = { type: "object", properties: { until: { type: "string" } }, required: ["until"] } as const;
const size = { type: "object", properties: { bytes: { type: "integer" } }, required: ["bytes"] } as const;
const lines = {
  type: "object",
  properties: { line: { type: "string" }, times: { type: "integer" } },
  required: ["line", "times"],
} as const;
const end = {
  type: "object",
  properties: {
    how: { enum: ["fail", "permanent", "retry_after", "snooze", "cancel", "wait"] },
    times: { type: "integer" },
    type: { type: "string" },
    message: { type: "string" },
    seconds: { type: "number" },
  },
  required: ["how"],
} as const;

function note(ctx: Context, what: string, more: object = {}): void {
  const line = JSON.stringify({ run_id: ctx.runId, attempt: ctx.attempt, what, ...more });
  appendFileSync(process.env["TIDEWHEEL_CONFORMANCE_EFFECTS"] ?? "", `${line}\n`);
}

function typed(type: string, message: string): Error {
  return Object.assign(new Error(message), { name: type });
}

const handlers = [
  defineHandler("conformance.echo", (ctx, payload) => {
    note(ctx, "echo", { traceparent: ctx.traceparent });
    return payload;
  }),
  defineHandler("conformance.hold", gate, async (ctx, { until }) => {
    note(ctx, "hold");
    while (!existsSync(until)) {
      if (ctx.signal.aborted) {
        note(ctx, "stopped");
        throw ctx.signal.reason;
      }
      await sleep(20);
    }
    return "held";
  }),
  defineHandler("conformance.stubborn", gate, async (ctx, { until }) => {
    note(ctx, "stubborn");
    while (!existsSync(until)) await sleep(20);
    return "held";
  }),
  defineHandler("conformance.end", end, (ctx, payload) => {
    const { how, times = 1000, type = "Broken", message = "as asked", seconds = 0 } = payload;
    note(ctx, how);
    if (ctx.attempt > times) return "at last";
    if (how === "wait") note(ctx, "token", { token: ctx.taskToken });
    const error = typed(type, message);
    const ends = {
      fail: () => error,
      permanent: () => permanent(error),
      retry_after: () => retryAfter(seconds, error),
      snooze: () => snooze(seconds),
      cancel: () => cancel(),
      wait: () => awaitCompletion("1h"),
    };
    throw ends[how]();
  }),
  defineHandler("conformance.checkpoint", async (ctx, payload) => {
    note(ctx, "checkpoint");
    if (ctx.checkpoint !== null) return ctx.checkpoint;
    await ctx.heartbeat({ done: 1 }, payload);
    throw typed("Broken", "after the checkpoint");
  }),
  defineHandler("conformance.large", size, (ctx, { bytes }) => {
    note(ctx, "large");
    return "x".repeat(bytes);
  }),
  defineHandler("conformance.next", (ctx, payload) => {
    note(ctx, "next");
    ctx.nextIn("1d");
    ctx.nextIn(String(payload));
    if (ctx.attempt > 1) throw permanent("the second attempt ends the run");
    throw snooze(0.001);
  }),
  defineHandler("conformance.print", lines, (ctx, { line, times }) => {
    note(ctx, "print");
    for (let n = 0; n < times; n++) ctx.log(line);
  }),
];

await runExecutor({ handlers });
