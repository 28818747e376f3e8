// One attempt: its handler, its time limits, its one report.

import type { ReportedOutcome, RunHeartbeat, StartedAttempt } from "./api.ts";
import { Checkpoint } from "./checkpoint.ts";
import type { Context } from "./context.ts";
import { readInterval } from "./durations.ts";
import type { Handler } from "./handler.ts";
import { call, type Api } from "./http.ts";
import { payloadOf, type RunRequest } from "./messages.ts";
import { CANCELLED, outcomeOf, succeeded, type Outcome } from "./outcomes.ts";

const OUTPUT_CHARACTERS = 64 * 1024;
const LONGEST_TIMER_MS = 2 ** 31 - 1;

type Timeout = NonNullable<ReportedOutcome["timeout"]>;
const ENDS: readonly ReportedOutcome["status"][] = ["succeeded", "failed", "timed_out", "cancelled"];
type Beat = { progress?: unknown; checkpoint?: unknown };

export class Attempt {
  readonly #started: StartedAttempt;
  readonly #request: RunRequest;
  readonly #api: Api;
  readonly #report: (outcome: ReportedOutcome) => void;
  readonly #stop = new AbortController();
  readonly #timers: NodeJS.Timeout[] = [];
  #silence: NodeJS.Timeout | undefined;
  #output = "";
  #nextIn: number | undefined;
  #over = false;
  #cancelled = false;
  #beats: Promise<void> = Promise.resolve();
  #nextBeat: { readonly beat: Beat; readonly sent: Promise<void> } | undefined;

  constructor(started: StartedAttempt, request: RunRequest, api: Api, report: (outcome: ReportedOutcome) => void) {
    this.#started = started;
    this.#request = request;
    this.#api = { url: api.url, key: started.task_token };
    this.#report = report;
  }

  /** Run the handler; return when it has ended, which can be after the report. */
  async run(handler: Handler): Promise<void> {
    this.#startTimers();
    const outcome = await this.#outcome(handler);
    await this.#beats; // the next attempt gets the last checkpoint
    this.end(this.#cancelled ? CANCELLED : outcome);
  }

  /** Report the outcome; only the first one counts. [17] */
  end(outcome: Outcome): void {
    if (this.#over) return;
    this.#settle();
    const { run_id, attempt } = this.#started;
    const output = this.#output === "" ? {} : { output: this.#output.slice(-OUTPUT_CHARACTERS) };
    const next = this.#nextIn !== undefined && ENDS.includes(outcome.status) ? { next_in: this.#nextIn } : {};
    this.#report({ run_id, attempt, ...outcome, ...output, ...next });
  }

  /** Request a stop; the attempt is over at its end, or after the grace period. [15] */
  cancel(graceSeconds: number): void {
    if (this.#cancelled) return;
    this.#cancelled = true;
    this.#stop.abort(new Error("a stop is requested"));
    this.#timers.push(setTimeout(() => this.end(CANCELLED), graceSeconds * 1000));
  }

  /** End the attempt at once, whatever the handler does. */
  stop(outcome: Outcome, reason: string): void {
    this.end(outcome);
    this.#stop.abort(new Error(reason));
  }

  /** Stop without a report: the lease is lost. [3] */
  abandon(): void {
    this.#settle();
    this.#stop.abort(new Error("the executor has lost its lease"));
  }

  async #outcome(handler: Handler): Promise<Outcome> {
    try {
      return succeeded(await handler.run(this.#context(), payloadOf(this.#request)));
    } catch (error) {
      return outcomeOf(error);
    }
  }

  #settle(): void {
    this.#over = true;
    this.#timers.forEach(clearTimeout);
  }

  #startTimers(): void { // [13]
    const { start_to_close_ms, heartbeat_ms } = this.#request.definition;
    this.#timeOut("start_to_close", start_to_close_ms);
    const remaining = this.#started.schedule_to_close_remaining_seconds;
    if (remaining !== null) this.#timeOut("schedule_to_close", remaining * 1000);
    if (heartbeat_ms) this.#silence = this.#timeOut("heartbeat", heartbeat_ms);
  }

  #timeOut(timeout: Timeout, ms: number): NodeJS.Timeout {
    const expire = () => this.stop({ status: "timed_out", timeout }, `${timeout} has passed`);
    const timer = setTimeout(expire, Math.min(ms, LONGEST_TIMER_MS));
    this.#timers.push(timer);
    return timer;
  }

  #context(): Context {
    const { run_id: runId, attempt } = this.#started;
    const { definition, labels, scheduled_at, traceparent, checkpoint: saved } = this.#request;
    const checkpoint = new Checkpoint(saved, (whole) => this.#beat({ checkpoint: whole }));
    return {
      runId,
      attempt,
      idempotencyKey: runId,
      scheduledAt: new Date(scheduled_at / 1000),
      deadline: this.#deadline(),
      jobKey: definition.job_key,
      tenant: definition.tenant,
      labels: { ...definition.labels, ...labels },
      checkpoint: checkpoint.own,
      traceparent,
      taskToken: this.#started.task_token,
      signal: this.#stop.signal,
      log: (text) => void (this.#output = `${this.#output}${text}\n`.slice(-2 * OUTPUT_CHARACTERS)),
      heartbeat: (progress, own) =>
        this.#beat({ progress, ...(own === undefined ? {} : { checkpoint: checkpoint.with(own) }) }),
      nextIn: (delay) => void (this.#nextIn = readInterval("nextIn", delay)),
      step: (name, work) => checkpoint.step(name, work),
    };
  }

  #deadline(): Date {
    const rest = (this.#started.schedule_to_close_remaining_seconds ?? Infinity) * 1000;
    return new Date(Date.now() + Math.min(this.#request.definition.start_to_close_ms, rest));
  }

  /**
   * Send a report [18], one at a time, so that an older checkpoint replaces no newer one.
   *
   * Calls meanwhile share the next report.
   */
  #beat(given: Beat): Promise<void> {
    this.#silence?.refresh();
    const beat = JSON.parse(JSON.stringify(given)) as Beat;
    if (this.#nextBeat !== undefined) {
      Object.assign(this.#nextBeat.beat, beat);
      return this.#nextBeat.sent;
    }
    const sent = this.#beats.then(async () => {
      this.#nextBeat = undefined;
      await this.#send(beat);
    });
    this.#nextBeat = { beat, sent };
    this.#beats = sent.catch(() => undefined); // the handler that awaits `sent` gets the error
    return sent;
  }

  async #send(beat: Beat): Promise<void> {
    const sent = { path: { run_id: this.#started.run_id }, body: beat as RunHeartbeat };
    await call(this.#api, "heartbeatRun", sent, { signal: this.#stop.signal });
  }
}
