// Handlers and the client on a real Tidewheel, which tests/sdk/test_typescript.py starts.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { after, before, test } from "node:test";
import { z } from "zod";
import {
  Client, defineHandler, Problem, retryAfter, snooze, startExecutor, type Executor, type RunWithAttempts,
} from "../src/index.ts";

type JobOptions = Partial<Parameters<Client["submit"]>[0]>;

const Order = z.object({ id: z.string(), placed: z.iso.datetime().transform((text) => new Date(text)) });
const calls = new Map<string, number>();

function count(what: string): number {
  const times = (calls.get(what) ?? 0) + 1;
  calls.set(what, times);
  return times;
}

const handlers = [
  defineHandler(
    "greet",
    { type: "object", properties: { name: { type: "string" }, times: { type: "integer" } }, required: ["name"] },
    (ctx, { name, times = 1 }) => {
      ctx.log(`greeting ${name}`);
      const greetings: string[] = Array.from({ length: times }, () => `hello ${name}`);
      return { greetings, key: ctx.jobKey, label: ctx.labels["team"] };
    },
  ),
  defineHandler("order", Order, (_, { id, placed }) => `${id} of ${placed.getUTCFullYear()}`),
  defineHandler("anything", (_, payload) => payload),
  defineHandler("fulfil", async (ctx) => {
    const charge = await ctx.step("charge", () => ({ id: `charge-${count("charge")}` }));
    await ctx.heartbeat({ charged: true }, { charge: charge.id });
    if (ctx.attempt === 1) throw new Error("the printer is out of paper");
    const label = await ctx.step("label", async () => `label-${count("label")}`);
    return { charge, label, checkpoint: ctx.checkpoint };
  }),
  defineHandler("beats", async (ctx) => {
    if (ctx.attempt > 1) return ctx.checkpoint;
    for (let row = 1; row <= 200; row++) void ctx.heartbeat({ row }, { row });
    throw new Error("after the last row");
  }),
  defineHandler("later", (ctx) => {
    if (ctx.attempt === 1) throw snooze(1);
    if (ctx.attempt === 2) throw retryAfter(0, "once more");
    return ctx.attempt;
  }),
  defineHandler("next", { type: ["string", "number", "null"] }, (ctx, delay) => ctx.nextIn(delay as number | string)),
  defineHandler("held", async (ctx) => {
    if (ctx.attempt > 1) return "again";
    await new Promise((resolve) => ctx.signal.addEventListener("abort", resolve));
    count("held stops");
    throw ctx.signal.reason;
  }),
];

const client = new Client();
let executor: Executor;
let earlier: Server | undefined;

before(async () => void (executor = await startExecutor({ handlers })));
after(async () => {
  await executor.stop();
  earlier?.close();
});

async function started(target: string, payload?: unknown, job: JobOptions = {}): Promise<string> {
  await client.submit({ key: target, schedule: "manual", target, retry: { initial: "1ms" }, ...job });
  const { run_id } = await client.trigger(target, payload);
  return run_id;
}

async function ended(target: string, payload?: unknown, job: JobOptions = {}): Promise<RunWithAttempts> {
  return client.wait(await started(target, payload, job));
}

test("a handler gets its payload and its job, and its result is recorded", async () => {
  const run = await ended("greet", { name: "Ann", times: 2 }, { labels: { team: "mail" } });
  assert.equal(run.status, "succeeded");
  assert.deepEqual(run.result, { greetings: ["hello Ann", "hello Ann"], key: "greet", label: "mail" });
  assert.ok((run.attempts[0]?.output_bytes ?? 0) > 0);
});

test("an invalid payload fails the run at once, and the error names the field", async () => {
  for (const [payload, field] of [[{ name: 7 }, "payload.name"], [undefined, "payload"]] as const) {
    const run = await ended("greet", payload);
    assert.deepEqual([run.status, run.attempt, run.error_type], ["failed", 1, "InvalidPayload"]);
    assert.ok(run.error_message?.startsWith(`${field}: `), run.error_message ?? "");
  }
});

test("zod checks and transforms payloads", async () => {
  assert.equal((await ended("order", { id: "o-1", placed: "2026-11-20T10:00:00Z" })).result, "o-1 of 2026");
  const run = await ended("order", { id: "o-1", placed: "yesterday" });
  assert.deepEqual([run.error_type, run.attempt], ["InvalidPayload", 1]);
  assert.match(run.error_message ?? "", /^payload\.placed: /);
});

test("a handler without a schema takes any payload", async () => {
  assert.deepEqual((await ended("anything", [1, "größer", null])).result, [1, "größer", null]);
  assert.equal((await ended("anything")).result, null);
});

test("a later attempt repeats no finished step", async () => {
  const run = await ended("fulfil");
  assert.deepEqual([run.status, run.attempt], ["succeeded", 2]);
  const result = { charge: { id: "charge-1" }, label: "label-1", checkpoint: { charge: "charge-1" } };
  assert.deepEqual(run.result, result);
});

test("reports that are not awaited are saved before the end, in their order", async () => {
  const run = await ended("beats");
  assert.deepEqual([run.status, run.result], ["succeeded", { row: 200 }]);
});

test("a handler chooses how its attempt ends", async () => {
  const run = await ended("later", undefined, { retry: { max_attempts: 2, initial: "1ms" } });
  assert.deepEqual([run.status, run.result, run.failed_attempts], ["succeeded", 3, 1]);
});

test("a repeated trigger creates one run", async () => {
  await started("anything");
  const first = await client.trigger("anything", 1, { requestId: "order-7" });
  assert.deepEqual(await client.trigger("anything", 1, { requestId: "order-7" }), first);
});

test("lists yield every page", async () => {
  await client.submit({ key: "listed", schedule: "manual", target: "anything" });
  const triggered = new Set<string>();
  for (let n = 0; n < 5; n++) triggered.add((await client.trigger("listed", n)).run_id);
  const found: string[] = [];
  for await (const run of client.runs({ job: "listed", limit: 2 })) found.push(run.run_id);
  assert.deepEqual([found.length, new Set(found)], [5, triggered]);
  const jobs: string[] = [];
  for await (const job of client.jobs({ limit: 1 })) jobs.push(job.key);
  assert.ok(jobs.includes("greet") && jobs.includes("anything"));
});

test("a refusal names each field with its remedy", async () => {
  const wrong = client.submit({ key: "wrong", schedule: "manual", target: "greet", max_runs: 0, priority: 11 });
  await assert.rejects(wrong, (error) => {
    assert.ok(error instanceof Problem);
    assert.deepEqual([error.status, error.code], [422, "invalid"]);
    assert.deepEqual(error.errors.map(({ path }) => path).sort(), ["max_runs", "priority"]);
    return error.errors.every(({ problem, remedy }) => problem !== "" && remedy !== "");
  });
  await assert.rejects(client.trigger("unknown"), { name: "Problem", code: "unknown_job" });
});

test("a stopping executor releases what runs, uncounted", async () => {
  const run = await started("held");
  while ((await client.run(run)).status !== "running");
  await executor.stop();
  assert.equal(calls.get("held stops"), 1);
  executor = await startExecutor({ handlers });
  const { status, result, attempt, failed_attempts, attempts } = await client.wait(run);
  assert.deepEqual([status, result, attempt, failed_attempts], ["succeeded", "again", 2, 0]);
  assert.deepEqual(attempts.map(({ outcome }) => outcome), ["released", "succeeded"]);
});

test("an interval that is none fails the handler, and any form of another one is recorded", async () => {
  for (const delay of ["0.5s", "401d", "soon", "", "PT", "P1M", -3, 0.5, null]) {
    const run = await ended("next", delay, { retry: { max_attempts: 1 } });
    assert.deepEqual([run.status, run.error_type], ["failed", "RangeError"], `${delay}`);
    assert.match(run.error_message ?? "", /^nextIn: .*; write 1s to 400d/);
  }
  for (const delay of ["1s", "400d", "1h30m", "PT1H30M", "1500ms", 1.1]) {
    assert.equal((await ended("next", delay)).status, "succeeded", `${delay}`);
  }
});

test("an end is recorded by an API of an earlier build, which refuses next_in", async () => {
  earlier = createServer(async (request, response) => {
    const body = await text(request);
    const refused = { status: 422, code: "invalid", detail: "outcomes.0.next_in: is an unknown field" };
    const { authorization = "" } = request.headers;
    const sent = { headers: { authorization, "content-type": "application/json" }, body: body || null };
    const answer = body.includes('"next_in"')
      ? Response.json(refused, { status: 422 })
      : await fetch(`${process.env["TIDEWHEEL_API_URL"]}${request.url}`, { method: request.method ?? "GET", ...sent });
    response.writeHead(answer.status, { "content-type": "application/json" }).end(await answer.text());
  }).listen(0, "127.0.0.1");
  await once(earlier, "listening");
  const url = `http://127.0.0.1:${(earlier.address() as AddressInfo).port}`;
  const warnings: string[] = [];
  await executor.stop();
  executor = await startExecutor({ handlers, url, warn: (message) => void warnings.push(message) });
  const run = await ended("next", "30s");
  assert.deepEqual([run.status, run.attempt], ["succeeded", 1]);
  assert.ok(warnings.some((each) => each.includes("without next_in")), warnings.join());
});
