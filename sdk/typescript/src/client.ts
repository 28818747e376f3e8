import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type {
  ChangedJob, CreatedRun, JobSpec, JobSummary, JobTrigger, Operations, RunSummary, RunWithAttempts,
} from "./api.ts";
import { call, type Api, type Sent } from "./http.ts";
import { apiOf, variable } from "./settings.ts";

export interface ClientOptions {
  /** The address of the API: `TIDEWHEEL_API_URL`, by default `http://127.0.0.1:8080`. */
  readonly url?: string;
  /** An API key: `TIDEWHEEL_API_KEY`. */
  readonly key?: string;
  /** The tenant of all calls; by default that of the key. */
  readonly tenant?: string;
  /** For how many seconds a call is repeated that gets no answer: 30. */
  readonly patience?: number;
}

export interface TriggerOptions extends Omit<JobTrigger, "payload"> {
  /** A repeat with the same id gets the first answer, for 8 days. */
  readonly requestId?: string;
}

export interface WaitOptions {
  /** The seconds after which `wait` throws: 60. */
  readonly seconds?: number;
  readonly signal?: AbortSignal;
}

export type JobQuery = Omit<Operations["listJobs"]["query"], "tenant" | "cursor">;
export type RunQuery = Omit<Operations["listRuns"]["query"], "tenant" | "cursor">;

type Cursor = { cursor?: string };

const ENDED: readonly string[] = ["succeeded", "failed", "timed_out", "cancelled", "skipped"];
const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 1000;

/** Submits and triggers jobs, and reads them and their runs. A refusal is a `Problem`. */
export class Client {
  readonly #api: Api;
  readonly #tenant: string | undefined;
  readonly #patience: number;

  constructor({ url, key, tenant, patience = 30 }: ClientOptions = {}) {
    this.#api = apiOf(url, key ?? variable("API_KEY"));
    this.#tenant = tenant;
    this.#patience = patience;
  }

  /** Create a job, or change it; an equal job changes nothing. */
  submit({ key, ...body }: JobSpec & { key: string }): Promise<ChangedJob> {
    return this.#call("putJob", { path: { key }, body, headers: requestHeader() });
  }

  /** Create a run of a job: now, or later by `delay` or `run_at`. Without a payload the run has the job's. */
  trigger(key: string, payload?: unknown, { requestId, ...options }: TriggerOptions = {}): Promise<CreatedRun> {
    const body = { ...options, ...(payload === undefined ? {} : { payload }) };
    return this.#call("triggerJob", { path: { key }, body, headers: requestHeader(requestId) });
  }

  /** Return a run with its attempts. */
  run(runId: string): Promise<RunWithAttempts> {
    return this.#call("getRun", { path: { run_id: runId } });
  }

  /** Wait until a run has ended, and return it. */
  async wait(runId: string, { seconds = 60, signal }: WaitOptions = {}): Promise<RunWithAttempts> {
    const end = performance.now() + seconds * 1000;
    for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(pause * 2, LONGEST_PAUSE_MS)) {
      const run = await this.#call("getRun", { path: { run_id: runId } }, signal);
      if (ENDED.includes(run.status)) return run;
      if (performance.now() + pause > end) {
        const problem = `run ${runId} is ${run.status} after ${seconds} s`;
        throw new Error(`seconds: ${problem}; wait for longer, or read its \`why\``);
      }
      await sleep(pause, undefined, { signal });
    }
  }

  /** Yield jobs by key. */
  async *jobs(query: JobQuery = {}): AsyncGenerator<JobSummary, void> {
    const read = (cursor: Cursor) => this.#call("listJobs", { query: { ...query, ...cursor } });
    for await (const page of pages(read)) yield* page.jobs;
  }

  /** Yield runs, latest first; runs that are scheduled for the future come last. */
  async *runs(query: RunQuery = {}): AsyncGenerator<RunSummary, void> {
    const read = (cursor: Cursor) => this.#call("listRuns", { query: { ...query, ...cursor } });
    for await (const page of pages(read)) yield* page.runs;
  }

  #call<Name extends keyof Operations>(
    name: Name,
    sent: Sent<Name>,
    signal?: AbortSignal,
  ): Promise<Operations[Name]["answer"]> {
    const tenant = this.#tenant === undefined ? {} : { tenant: this.#tenant };
    const whole = { ...sent, query: { ...sent.query, ...tenant } } as Sent<Name>;
    return call(this.#api, name, whole, { seconds: this.#patience, signal });
  }
}

async function* pages<Page extends { next_cursor: string | null }>(
  read: (cursor: Cursor) => Promise<Page>,
): AsyncGenerator<Page, void> {
  let page = await read({});
  yield page;
  while (page.next_cursor !== null) yield (page = await read({ cursor: page.next_cursor }));
}

function requestHeader(requestId: string = randomUUID()): Record<string, string> {
  return { "Idempotency-Key": requestId };
}
