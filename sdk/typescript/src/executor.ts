// An executor by docs/wire-contract.md; [n] names the rule that a line implements.

import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import type { RunToClaim, StartedAttempt } from "./api.ts";
import { Attempt } from "./attempt.ts";
import { TopicConsumer, type RunMessage, type RunStream } from "./consumer.ts";
import { call } from "./http.ts";
import { proofOf, readMessage, type RunRequest } from "./messages.ts";
import { Registration } from "./registration.ts";
import { keyOf } from "./reports.ts";
import { executorSettings, type ExecutorOptions, type ExecutorSettings } from "./settings.ts";
import { Slots } from "./slots.ts";

const NOT_STARTED = { status: "released", started: false } as const;
const REGISTER_PAUSE_MS = 2000;

/** A running executor. */
export interface Executor {
  /** Claim no more, let attempts end for the drain timeout, release the others, leave. */
  stop(): Promise<void>;
}

/** Start an executor; return when the API has registered it. */
export async function startExecutor(options: ExecutorOptions): Promise<Executor> {
  const executor = new Service(executorSettings(options));
  await executor.start();
  return executor;
}

/** Run an executor until SIGTERM or SIGINT, then stop it and end the process. */
export async function runExecutor(options: ExecutorOptions): Promise<never> {
  const executor = await startExecutor(options);
  await Promise.race([once(process, "SIGTERM"), once(process, "SIGINT")]);
  await executor.stop();
  process.exit(); // a handler that ignores its signal may still run
}

class Service implements Executor {
  readonly #settings: ExecutorSettings;
  readonly #slots: Slots;
  readonly #stop = new AbortController();
  #registration!: Registration;
  #consumers: TopicConsumer[] = [];

  constructor(settings: ExecutorSettings) {
    this.#settings = settings;
    this.#slots = new Slots(settings.slots);
  }

  async start(): Promise<void> {
    await this.#register();
    const { name, kafka, warn } = this.#settings;
    this.#consumers = this.#registration.facts.topics.map((topic) => new TopicConsumer(topic, name, kafka));
    for (const each of this.#consumers) void each.run((first, stream) => this.#claimMessages(first, stream), warn);
    void this.#sweep();
  }

  async stop(): Promise<void> { // [19]
    this.#stop.abort();
    this.#slots.wake();
    await Promise.all(this.#consumers.map((each) => each.close()));
    const registration = this.#registration;
    await registration.claimed();
    await this.#drained(registration);
    for (const each of registration.attempts.values()) each.stop({ status: "released" }, "the executor stops");
    await registration.reports.done();
    await registration.leave();
  }

  async #drained({ attempts }: Registration): Promise<void> {
    const isTimeUp = sleep(this.#settings.drainTimeout * 1000, true, { ref: false });
    while (attempts.size > 0 && !(await Promise.race([this.#slots.changed(), isTimeUp])));
  }

  async #register(): Promise<void> { // [1]
    const { api, name, queues, slots, handlers, cancelGrace, warn } = this.#settings;
    const sentAt = performance.now();
    const body = { name, queues, slots, handlers: [...handlers.keys()] };
    const facts = await call(api, "registerExecutor", { body }, { signal: this.#stop.signal, warn });
    const onLost = () => void this.#registerAgain();
    this.#registration = new Registration(facts, sentAt, { api, cancelGrace, warn, onLost });
    void this.#registration.beat(() => this.#stop.signal.aborted);
  }

  async #registerAgain(): Promise<void> { // [3]
    const { warn } = this.#settings;
    warn("the executor has lost its lease, and registers again");
    for (; !this.#stop.signal.aborted; await sleep(REGISTER_PAUSE_MS)) {
      try {
        return await this.#register();
      } catch (error) {
        warn(String(error));
      }
    }
  }

  /** Claim a message and others that are fetched, as many as there are free slots. [11] */
  async #claimMessages(first: RunMessage, stream: RunStream): Promise<void> {
    await this.#slots.available(this.#stop.signal);
    const messages = [first, ...fetched(stream, Math.min(this.#slots.free, this.#registration.facts.max_runs) - 1)];
    this.#slots.take(messages.length);
    try {
      const requests = await this.#readMessages(messages);
      const runs = [...requests.values()].map(({ run }) => run);
      if (runs.length > 0) await this.#claim({ runs }, async ({ run_id }) => requests.get(run_id)?.request);
    } finally {
      this.#slots.give(messages.length);
    }
    await this.#commit(messages);
  }

  async #readMessages(messages: readonly RunMessage[]): Promise<Map<string, { request: RunRequest; run: RunToClaim }>> {
    const { api, handlers, warn } = this.#settings;
    const found = new Map<string, { request: RunRequest; run: RunToClaim }>();
    for (const { topic, partition, offset, timestamp, value, headers } of messages) {
      const proof = proofOf(value, headers);
      const skip = (error: unknown) => void warn(`a message is skipped: ${String(error)}`);
      const request = proof && (await readMessage(value, api).catch(skip)); // [6]
      if (!request || !handlers.has(request.definition.target.handler ?? "")) continue; // [7]
      const { run_id, attempt, job_version, publish_at } = request;
      const claimed_from = `${topic}/${partition}/${offset}@${timestamp}`;
      found.set(run_id, { request, run: { run_id, attempt, job_version, publish_at, claimed_from, ...proof } });
    }
    return found;
  }

  /** Commit the last offset of each partition, after the claim and before the work. [10] */
  async #commit(messages: readonly RunMessage[]): Promise<void> {
    const last = new Map(messages.map((each) => [each.partition, each]));
    const commits = [...last.values()].map(async (each) => each.commit());
    await Promise.all(commits).catch((error) => this.#settings.warn(`an offset is not committed: ${String(error)}`));
  }

  async #sweep(): Promise<void> { // [12]
    const { api, warn } = this.#settings;
    const { signal } = this.#stop;
    const read = async ({ request }: StartedAttempt) => readMessage(Buffer.from(request ?? "", "base64"), api);
    while (!signal.aborted) {
      const { max_sweep, sweep_seconds } = this.#registration.facts;
      const sweep = Math.max(0, Math.min(this.#slots.free, max_sweep));
      this.#slots.take(sweep);
      if (sweep > 0) await this.#claim({ sweep }, read).catch((error) => signal.aborted || warn(String(error)));
      this.#slots.give(sweep);
      await sleep(sweep_seconds * 1000, undefined, { signal }).catch(() => undefined);
    }
  }

  async #claim(
    claim: { runs: RunToClaim[] } | { sweep: number },
    requestOf: (started: StartedAttempt) => Promise<RunRequest | undefined>,
  ): Promise<void> {
    this.#stop.signal.throwIfAborted();
    const registration = this.#registration;
    await registration.claim(claim, async (started) => {
      const request = await requestOf(started).catch((error) => void this.#settings.warn(String(error)));
      const { run_id, attempt } = started;
      if (request) this.#start(registration, started, request);
      else registration.reports.add({ run_id, attempt, ...NOT_STARTED });
    });
  }

  #start(registration: Registration, started: StartedAttempt, request: RunRequest): void { // [9]
    const attempt = new Attempt(started, request, this.#settings.api, (each) => registration.reports.add(each));
    const handler = this.#settings.handlers.get(request.definition.target.handler ?? "");
    const isOver = this.#stop.signal.aborted || registration.isSilent; // [4]
    if (handler === undefined || isOver) return attempt.end(NOT_STARTED);
    registration.attempts.set(keyOf(started), attempt);
    this.#slots.take();
    void attempt.run(handler).finally(() => {
      registration.attempts.delete(keyOf(started));
      this.#slots.give();
    });
  }
}

/** Yield messages that the stream has already, at most so many. */
function* fetched(stream: RunStream, most: number): Generator<RunMessage, void> {
  for (let count = 0; count < most; count++) {
    const message = stream.read() as RunMessage | null;
    if (message === null) return;
    yield message;
  }
}
