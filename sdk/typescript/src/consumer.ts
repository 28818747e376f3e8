import { setTimeout as sleep } from "node:timers/promises";
import { Consumer, type ConsumerOptions, type Message, type MessagesStream } from "@platformatic/kafka";
import type { RunTopic } from "./api.ts";

/** Options of the Kafka client, such as `bootstrapBrokers`, `sasl` and `tls`. */
export type KafkaOptions = Partial<Options>;
export type RunMessage = Message<Buffer, Buffer, Buffer, Buffer>;
export type RunStream = MessagesStream<Buffer, Buffer, Buffer, Buffer>;

type Options = ConsumerOptions<Buffer, Buffer, Buffer, Buffer>;
type Take = (first: RunMessage, stream: RunStream) => Promise<void>;

const PAUSE_MS = 500;

/** Consumes one topic of run messages until it is closed, and connects again after an error. [5] */
export class TopicConsumer {
  readonly #topic: RunTopic;
  readonly #options: Options;
  readonly #closed = new AbortController();
  #consumer: Consumer<Buffer, Buffer, Buffer, Buffer> | undefined;

  constructor(topic: RunTopic, clientId: string, kafka: KafkaOptions) {
    this.#topic = topic;
    this.#options = { ...kafka, clientId, groupId: topic.group, autocommit: false } as Options;
  }

  /** Pass each message to `take`, with the stream that can have further ones. */
  async run(take: Take, warn: (message: string) => void): Promise<void> {
    const { signal } = this.#closed;
    while (!signal.aborted) {
      this.#consumer = new Consumer(this.#options);
      try {
        const topics = [this.#topic.topic];
        const stream = await this.#consumer.consume({ topics, mode: "committed", fallbackMode: "earliest" });
        for await (const message of stream) await take(message, stream);
      } catch (error) {
        if (!signal.aborted) warn(`${this.#topic.topic}: ${String(error)}; trying again`);
      }
      await this.#leave();
      await sleep(PAUSE_MS, undefined, { signal }).catch(() => undefined);
    }
  }

  /** Leave the group. */
  async close(): Promise<void> {
    this.#closed.abort();
    await this.#leave();
  }

  async #leave(): Promise<void> {
    await this.#consumer?.close(true).catch(() => undefined);
  }
}
