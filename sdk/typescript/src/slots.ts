/** The slots of an executor: the attempts that it executes in parallel, and those that a claim can start. [11] */
export class Slots {
  readonly #total: number;
  #taken = 0;
  #waiting: (() => void)[] = [];

  constructor(total: number) {
    this.#total = total;
  }

  get free(): number {
    return this.#total - this.#taken;
  }

  take(count = 1): void {
    this.#taken += count;
  }

  give(count = 1): void {
    this.#taken -= count;
    this.wake();
  }

  /** Wait until a slot is free, or the signal has aborted. */
  async available(signal: AbortSignal): Promise<void> {
    while (this.free <= 0 && !signal.aborted) await this.changed();
  }

  /** Wait until slots are given back, or until `wake`. */
  changed(): Promise<void> {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Make waiting callers look again. */
  wake(): void {
    for (const resolve of this.#waiting.splice(0)) resolve();
  }
}
