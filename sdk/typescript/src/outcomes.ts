// How attempts end: what handlers throw for another end than a failure, and the outcome of any error. [14] [16]

import type { ReportedOutcome } from "./api.ts";

export type Outcome = Omit<ReportedOutcome, "run_id" | "attempt" | "output">;

export const CANCELLED: Outcome = { status: "cancelled" };

const RESULT_BYTES = 64 * 1024;
const MESSAGE_CHARACTERS = 4096;
const TRACE_CHARACTERS = 32 * 1024;
const TYPE_CHARACTERS = 255;

/** Thrown by a handler to end its attempt; the functions of this file make it. */
export class Ending extends Error {
  override readonly name = "Ending";
  readonly outcome: Outcome;

  constructor(message: string, outcome: Outcome) {
    super(message);
    this.outcome = outcome;
  }
}

/** The run fails: no retry can correct the cause. */
export function permanent(cause: Error | string): Ending {
  return failing("Permanent", cause, { permanent: true });
}

/** The attempt fails, and the next one starts after so many seconds at the earliest. */
export function retryAfter(seconds: number, cause: Error | string = `retry after ${seconds} s`): Ending {
  return failing("RetryAfter", cause, { retry_after: seconds });
}

/** The run is queued again for so many seconds, uncounted. */
export function snooze(seconds: number): Ending {
  return new Ending(`snoozed for ${seconds} s`, { status: "snoozed", delay: seconds });
}

/** The run ends as cancelled. */
export function cancel(): Ending {
  return new Ending("cancelled by the handler", CANCELLED);
}

/** The run waits without a slot for a request with its task token, at most `within`: seconds, or as `1h`. */
export function awaitCompletion(within: number | string): Ending {
  return new Ending(`waits up to ${within}`, { status: "waiting", within });
}

/** Return the outcome of a handler that has returned. */
export function succeeded(result: unknown): Outcome {
  let text: string;
  try {
    text = JSON.stringify(result) ?? "null";
  } catch (error) {
    const message = `the result has no JSON form (${String(error)}); return plain values`;
    return failing("ResultNotSerializable", message, { permanent: true }).outcome;
  }
  const bytes = Buffer.byteLength(text);
  if (bytes <= RESULT_BYTES) return { status: "succeeded", result: result ?? null };
  const message = `the result has ${bytes} bytes, more than ${RESULT_BYTES}; return a reference instead`;
  return failing("ResultTooLarge", message, { permanent: true }).outcome;
}

/** Return the outcome of a handler that has thrown. */
export function outcomeOf(thrown: unknown): Outcome {
  if (thrown instanceof Ending) return thrown.outcome;
  return failing("Error", thrown instanceof Error ? thrown : String(thrown)).outcome;
}

/** Return the end of a failed attempt; a text has the error type `type`, an error its own. */
export function failing(type: string, cause: Error | string, more: Partial<Outcome> = {}): Ending {
  const error = cause instanceof Error ? cause : Object.assign(new Error(cause), { name: type });
  return new Ending(error.message, {
    status: "failed",
    error_type: typeOf(error).slice(0, TYPE_CHARACTERS),
    error_message: error.message.slice(0, MESSAGE_CHARACTERS),
    trace: (error.stack ?? "").slice(-TRACE_CHARACTERS),
    ...more,
  });
}

// `class NoLuck extends Error {}` leaves `name` as it is.
function typeOf(error: Error): string {
  return (error.name === "Error" ? error.constructor.name : error.name) || "Error";
}
