/** One attempt, as its handler sees it. */
export interface Context {
  /** The run; the same for all its attempts. */
  readonly runId: string;
  /** 1, 2, …; no two attempts of a run have the same number. */
  readonly attempt: number;
  /** The run's id: send it with every effect, so that the receiver can recognise a repeat. */
  readonly idempotencyKey: string;
  /** The nominal instant. */
  readonly scheduledAt: Date;
  /** The end of the attempt's time limit, by this machine's clock. */
  readonly deadline: Date;
  readonly jobKey: string;
  readonly tenant: string;
  /** The job's labels, overridden by those of the trigger. */
  readonly labels: Readonly<Record<string, string>>;
  /** The last checkpoint of an earlier attempt, or null. */
  readonly checkpoint: unknown;
  /** The trigger's trace context, or null. */
  readonly traceparent: string | null;
  /** Lets an outside system complete the attempt; a secret. */
  readonly taskToken: string;
  /** Aborts when the attempt must stop: pass it on to what waits. */
  readonly signal: AbortSignal;
  /** Add a line to the attempt's output. */
  log(text: string): void;
  /**
   * Report that the attempt still runs, its progress, and the data from which a later attempt continues.
   *
   * The promise resolves when the API has saved the report. `undefined` keeps the last value.
   */
  heartbeat(progress?: unknown, checkpoint?: unknown): Promise<void>;
  /**
   * Set the time from the end of this run to the next run of its `fixed_delay` job: seconds, or as `30s`.
   *
   * The last call counts, within the job's `min` and `max`, if this attempt ends the run. Throws a `RangeError` for what
   * is no duration of 1 s to 400 days.
   */
  nextIn(delay: number | string): void;
  /**
   * Run a part of the handler once: a later attempt gets its saved result instead.
   *
   * The result is returned as decoded from JSON. The name is unique within the handler.
   */
  step<Result>(name: string, work: () => Result | Promise<Result>): Promise<Result>;
}
