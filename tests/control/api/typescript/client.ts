// The API as a program in TypeScript uses it. `api.d.ts` is generated from the OpenAPI document of the API that answers.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

type Run = components["schemas"]["RunSummary"];
type Job = components["schemas"]["JobSpec"];

const { API_URL: baseUrl = "", API_KEY: key = "" } = process.env;
const headers = { Authorization: `Bearer ${key}` };
const api = createClient<paths>({ baseUrl, headers });
const nightly: Job = { schedule: "manual", target: "note", labels: { team: "billing" } };

/** Return the data of an answer that is no refusal. */
function accepted<T>(answer: { data?: T; error?: unknown; response: Response }): NonNullable<T> {
  assert.ok(answer.data != null, `${answer.response.url}: ${JSON.stringify(answer.error)}`);
  return answer.data;
}

async function createAndChange(): Promise<void> {
  const made = await api.PUT("/api/v1/jobs/{key}", { params: { path: { key: "nightly" } }, body: nightly });
  assert.deepEqual([made.response.status, accepted(made).version], [201, 1]);
  assert.equal(made.response.headers.get("Location"), "/api/v1/jobs/nightly");

  const params = { path: { key: "nightly" } };
  const read = await api.GET("/api/v1/jobs/{key}", { params });
  const version = read.response.headers.get("ETag") ?? "";
  assert.deepEqual(accepted(read).job.labels, { team: "billing" });

  const change = { params: { ...params, header: { "If-Match": version } }, body: { description: "every night" } };
  assert.equal(accepted(await api.PATCH("/api/v1/jobs/{key}", change)).version, 2);
  const late = await api.PATCH("/api/v1/jobs/{key}", { ...change, body: { description: "too late" } });
  assert.deepEqual([late.response.status, late.error?.code], [412, "version_conflict"]);
}

async function refused(): Promise<void> {
  const wrong = { ...nightly, max_runs: 0, retry: { max_attempts: 0 } };
  const answer = await api.POST("/api/v1/jobs", { body: { ...wrong, key: "wrong" } });
  assert.equal(answer.response.status, 422);
  const errors = answer.error?.errors ?? [];
  assert.deepEqual(errors.map((each) => each.path).sort(), ["max_runs", "retry.max_attempts"]);
  assert.ok(errors.every((each) => each.problem !== "" && each.remedy !== ""));
}

async function trigger(order: string): Promise<string> {
  const params = { path: { key: "nightly" }, header: { "Idempotency-Key": order } };
  const first = accepted(await api.POST("/api/v1/jobs/{key}:trigger", { params, body: { payload: { order } } }));
  const again = accepted(await api.POST("/api/v1/jobs/{key}:trigger", { params, body: { payload: { order } } }));
  assert.equal(again.run_id, first.run_id);
  return first.run_id;
}

/** Yield the events of a stream of runs. Source: the HTML standard, section 9.2.6. */
async function* follow(last?: string): AsyncGenerator<{ id: string | undefined; run: Run }> {
  const stop = new AbortController();
  const { data, response } = await api.GET("/api/v1/run-events", {
    params: { query: { job: "nightly" }, header: last === undefined ? {} : { "Last-Event-ID": last } },
    parseAs: "stream",
    signal: stop.signal,
  });
  assert.ok(data != null, `${response.status}`);
  try {
    let text = "";
    for await (const part of data.pipeThrough(new TextDecoderStream())) {
      const events = (text + part).split("\n\n");
      text = events.pop() ?? "";
      for (const event of events) {
        const fields = new Map(event.split("\n").map((line) => line.split(/: (.*)/s, 2) as [string, string]));
        const run = fields.get("data");
        if (run !== undefined) yield { id: fields.get("id"), run: JSON.parse(run) as Run };
      }
    }
  } finally {
    stop.abort();
  }
}

/** Follow the events after an id until a run has ended; return the last id: some events have none. */
async function ended(runId: string, last: string): Promise<string> {
  for await (const { id, run } of follow(last)) {
    last = id ?? last;
    if (run.run_id === runId && run.finished_at !== null) {
      assert.equal(run.status, "succeeded");
      return last;
    }
  }
  return assert.fail("the stream has ended");
}

async function listed(): Promise<Run[]> {
  const found: Run[] = [];
  let cursor: string | null = null;
  do {
    const query = { job: "nightly", limit: 2, ...(cursor === null ? {} : { cursor }) };
    const page: components["schemas"]["RunPage"] = accepted(await api.GET("/api/v1/runs", { params: { query } }));
    assert.ok(page.runs.length <= 2);
    assert.equal(page.total, 5);
    found.push(...page.runs);
    cursor = page.next_cursor;
  } while (cursor !== null);
  return found;
}

await createAndChange();
await refused();
const since = new Date().toISOString();
const first = await trigger("order-1");
const run = accepted(await api.GET("/api/v1/runs/{run_id}", { params: { path: { run_id: first } } }));
assert.deepEqual([run.key, run.cause], ["nightly", "trigger"]);
const last = await ended(first, since);
// While no stream is open, a run ends: a stream that begins after the last event has it.
const missed = await trigger("order-2");
await ended(missed, last);
const others = [await trigger("order-3"), await trigger("order-4"), await trigger("order-5")];
assert.deepEqual(new Set((await listed()).map((each) => each.run_id)), new Set([first, missed, ...others]));
const unknown = await api.GET("/api/v1/jobs/{key}", { params: { path: { key: "nope" } } });
assert.deepEqual([unknown.response.status, unknown.error?.code], [404, "unknown_job"]);
console.log("done");
