// The checkpoint of a run: its handler's own, and the results of its steps. Handlers in Python write the same form.

import { permanent } from "./outcomes.ts";

const STEPS = "tidewheel.steps";
const OWN = "checkpoint";
const BYTES = 64 * 1024;

type Save = (checkpoint: unknown) => Promise<void>;

export class Checkpoint {
  own: unknown = null;
  #steps: Map<string, unknown> | undefined;
  readonly #used = new Set<string>();
  readonly #save: Save;

  constructor(saved: Buffer | null, save: Save) {
    this.#save = save;
    if (saved === null) return;
    const text = saved.toString();
    const value = JSON.parse(text);
    if (text.startsWith(`{"${STEPS}":`)) this.#steps = new Map(Object.entries(value[STEPS]));
    this.own = this.#steps ? (value[OWN] ?? null) : value;
  }

  /** Return the whole checkpoint with a new one of the handler's own. */
  with(own: unknown): unknown {
    this.own = own;
    return this.#whole(this.#steps, own);
  }

  /** Run a step, or return the result that an earlier attempt has saved. */
  async step<Result>(name: string, work: () => Result | Promise<Result>): Promise<Result> {
    if (this.#used.has(name)) {
      throw new Error(`name: step ${JSON.stringify(name)} has run in this attempt; give each step its own name`);
    }
    this.#used.add(name);
    if (!this.#steps?.has(name)) await this.#finish(name, plain(await work()));
    return this.#steps?.get(name) as Result;
  }

  async #finish(name: string, result: unknown): Promise<void> {
    const steps = new Map(this.#steps).set(name, result);
    const whole = this.#whole(steps, this.own);
    const bytes = Buffer.byteLength(JSON.stringify(whole));
    if (bytes > BYTES) {
      const problem = `its result brings the checkpoint to ${bytes} bytes, more than ${BYTES}`;
      throw permanent(`step ${JSON.stringify(name)}: ${problem}; store it elsewhere and return its address`);
    }
    this.#steps = steps;
    await this.#save(whole);
  }

  #whole(steps: Map<string, unknown> | undefined, own: unknown): unknown {
    if (steps === undefined) return own;
    return { [STEPS]: Object.fromEntries(steps), ...(own === null ? {} : { [OWN]: own }) };
  }
}

/** Return a value as decoded from JSON, which a later attempt gets. */
function plain(value: unknown): unknown {
  return JSON.parse(JSON.stringify(value) ?? "null");
}
