// One registration of an executor: its lease, its claims, its attempts and their outcomes. All end with the lease.

import { setTimeout as sleep } from "node:timers/promises";
import type { ClaimRequest, Operations, RegisteredExecutor, ReportedOutcome, StartedAttempt } from "./api.ts";
import type { Attempt } from "./attempt.ts";
import { call, type Api, type Repeats } from "./http.ts";
import { Problem } from "./problem.ts";
import { keyOf, Reports } from "./reports.ts";

export interface RegistrationOptions {
  readonly api: Api;
  readonly cancelGrace: number;
  readonly warn: (message: string) => void;
  readonly onLost: () => void;
}

type Claim = Omit<ClaimRequest, "claim_id">;
type ExecutorCall = "heartbeatExecutor" | "claimRuns" | "finishAttempts" | "unregisterExecutor";

export class Registration {
  readonly facts: RegisteredExecutor;
  readonly reports: Reports;
  readonly attempts = new Map<string, Attempt>();
  readonly #options: RegistrationOptions;
  readonly #over = new AbortController();
  #claimId = 0;
  #claiming: Promise<void> = Promise.resolve();
  #heartbeatAt: number;

  /** `sentAt` is when the registration was sent, by `performance.now()`. */
  constructor(facts: RegisteredExecutor, sentAt: number, options: RegistrationOptions) {
    this.facts = facts;
    this.#heartbeatAt = sentAt;
    this.#options = options;
    const send = (outcomes: readonly ReportedOutcome[]) => this.#call("finishAttempts", { outcomes: [...outcomes] });
    this.reports = new Reports(send, facts.max_outcomes, options.warn);
  }

  /** True if the lease may be over, so that another executor may own the attempts. [4] */
  get isSilent(): boolean {
    return this.#over.signal.aborted || performance.now() - this.#heartbeatAt > this.facts.lease_seconds * 1000;
  }

  /** Renew the lease until it is lost or left. [2] */
  async beat(isStopping: () => boolean): Promise<void> {
    const answerMs = Math.ceil((this.facts.lease_seconds * 1000) / 3);
    while (!this.#over.signal.aborted) {
      const sentAt = performance.now();
      try {
        const { signals } = await this.#call("heartbeatExecutor", { stopping: isStopping() }, { answerMs });
        this.#heartbeatAt = sentAt;
        for (const { kind, ...fence } of signals) this.#signal(keyOf(fence), kind);
      } catch (error) {
        this.#warn(error);
      }
      await this.#pause(this.facts.heartbeat_seconds);
    }
  }

  /**
   * Claim runs, and start what the API has started. [8]
   *
   * One claim follows another, with rising numbers. `call` repeats a claim whose answer is lost, unchanged.
   */
  claim(claim: Claim, start: (started: StartedAttempt) => Promise<void>): Promise<void> {
    const claimed = this.#claiming.then(async () => {
      const { started } = await this.#call("claimRuns", { claim_id: ++this.#claimId, ...claim });
      if (!this.#over.signal.aborted) for (const each of started) await start(each);
    });
    this.#claiming = claimed.catch(() => undefined);
    return claimed;
  }

  /** Wait until no claim is under way. */
  async claimed(): Promise<void> {
    await this.#claiming;
  }

  /** Leave: the API removes the executor. */
  async leave(): Promise<void> {
    await this.#call("unregisterExecutor", {}).catch((error) => this.#warn(error));
    this.#over.abort(new Error("the executor has left"));
  }

  #signal(key: string, kind: "cancel" | "terminate"): void { // [15]
    const attempt = this.attempts.get(key);
    if (kind === "terminate") attempt?.stop({ status: "cancelled" }, "the run is over");
    else attempt?.cancel(this.#options.cancelGrace);
  }

  #lose(): void { // [3]
    if (this.#over.signal.aborted) return;
    this.#over.abort(new Error("the executor has lost its lease"));
    this.reports.close();
    for (const attempt of this.attempts.values()) attempt.abandon();
    this.#options.onLost();
  }

  async #call<Name extends ExecutorCall>(
    name: Name,
    body: Operations[Name]["body"],
    repeats: Repeats = {},
  ): Promise<Operations[Name]["answer"]> {
    const sent = { path: { executor_id: this.facts.executor_id }, body };
    const { api, warn } = this.#options;
    try {
      return await call(api, name, sent, { signal: this.#over.signal, warn, ...repeats });
    } catch (error) {
      if (error instanceof Problem && error.code === "unknown_executor") this.#lose();
      throw error;
    }
  }

  #warn(error: unknown): void {
    if (!this.#over.signal.aborted) this.#options.warn(String(error));
  }

  async #pause(seconds: number): Promise<void> {
    await sleep(seconds * 1000, undefined, { signal: this.#over.signal }).catch(() => undefined);
  }
}
