// Outcomes on their way to the API: each is kept until an answer comes. [17]

import { setTimeout as sleep } from "node:timers/promises";
import type { RecordedOutcomes, ReportedOutcome } from "./api.ts";
import { Problem } from "./problem.ts";

const REFUSED_CONTENT = [400, 413, 422]; // the body is too long, or one outcome is invalid
const UNRECORDABLE = "UnrecordableOutcome";
const PAUSE_MS = 1000;

type Fence = Pick<ReportedOutcome, "run_id" | "attempt">;
type Send = (outcomes: readonly ReportedOutcome[]) => Promise<RecordedOutcomes>;

export function keyOf({ run_id, attempt }: Fence): string {
  return `${run_id}/${attempt}`;
}

export class Reports {
  readonly #send: Send;
  readonly #most: number;
  readonly #warn: (message: string) => void;
  readonly #kept = new Map<string, ReportedOutcome>();
  #sending: Promise<void> | undefined;
  #closed = false;

  /** `most` is the number of outcomes in one call. */
  constructor(send: Send, most: number, warn: (message: string) => void) {
    this.#send = send;
    this.#most = most;
    this.#warn = warn;
  }

  add(outcome: ReportedOutcome): void {
    if (this.#closed) return;
    this.#kept.set(keyOf(outcome), outcome);
    this.#sending ??= this.#sendAll();
  }

  /** Wait until each outcome has its answer. */
  async done(): Promise<void> {
    await this.#sending;
  }

  /** Drop all outcomes, also later ones: the lease is lost. */
  close(): void {
    this.#closed = true;
    this.#kept.clear();
  }

  async #sendAll(): Promise<void> {
    while (this.#kept.size > 0) await this.#record([...this.#kept.values()].slice(0, this.#most));
    this.#sending = undefined;
  }

  async #record(outcomes: readonly ReportedOutcome[]): Promise<void> {
    try {
      const answered = await this.#send(outcomes);
      for (const each of answered.outcomes) if (each.answer !== "busy") this.#kept.delete(keyOf(each));
    } catch (error) {
      if (this.#closed) return;
      if (error instanceof Problem && REFUSED_CONTENT.includes(error.status)) return this.#split(outcomes, error);
      this.#warn(`outcomes are not recorded: ${String(error)}; trying again`);
      await sleep(PAUSE_MS);
    }
  }

  /** Find the outcome that the API refuses, and report a failure in its place. */
  async #split(outcomes: readonly ReportedOutcome[], problem: Problem): Promise<void> {
    const [first, ...others] = outcomes;
    if (first === undefined) return;
    if (others.length > 0) {
      const middle = outcomes.length >> 1;
      await this.#record(outcomes.slice(0, middle));
      return this.#record(outcomes.slice(middle));
    }
    this.#warn(`run ${first.run_id}: its outcome is refused: ${problem.message}`);
    const { next_in, ...known } = first;
    if (next_in !== undefined) { // an API of an earlier build does not know it
      this.#warn(`run ${first.run_id}: sending its outcome without next_in`);
      return this.#record([known]);
    }
    if (first.error_type === UNRECORDABLE) return void this.#kept.delete(keyOf(first)); // the lease ends the attempt
    const failure = { error_type: UNRECORDABLE, error_message: problem.message, permanent: true };
    return this.#record([{ run_id: first.run_id, attempt: first.attempt, status: "failed", ...failure }]);
  }
}
