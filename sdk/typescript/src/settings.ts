// Settings: what a program passes, else the environment, else the default.

import { hostname } from "node:os";
import type { KafkaOptions } from "./consumer.ts";
import type { Handler } from "./handler.ts";
import type { Api } from "./http.ts";

export interface ExecutorOptions {
  readonly handlers: readonly Handler[];
  /** The address of the API: `TIDEWHEEL_API_URL`, by default `http://127.0.0.1:8080`. */
  readonly url?: string;
  /** An API key with the scope `execute`, or the token of executors: `TIDEWHEEL_API_TOKEN`. */
  readonly key?: string;
  /** `TIDEWHEEL_QUEUES`, by default `default`. */
  readonly queues?: readonly string[];
  /** How many attempts it executes in parallel: `TIDEWHEEL_SLOTS`, by default 100. */
  readonly slots?: number;
  /** The seconds of a handler between a request to stop and the end of its attempt: `TIDEWHEEL_CANCEL_GRACE`, 10. */
  readonly cancelGrace?: number;
  /** The seconds of attempts to end after SIGTERM: `TIDEWHEEL_DRAIN_TIMEOUT`, 30. */
  readonly drainTimeout?: number;
  /** The name that lists of executors show: by default host and process. */
  readonly name?: string;
  /** Options of the Kafka client, over those of `TIDEWHEEL_KAFKA_BOOTSTRAP` and `TIDEWHEEL_KAFKA_CONFIG_SASL_…`. */
  readonly kafka?: KafkaOptions;
  /** Gets a line about each fault; by default standard error. */
  readonly warn?: (message: string) => void;
}

export interface ExecutorSettings {
  readonly api: Api;
  readonly handlers: ReadonlyMap<string, Handler>;
  readonly queues: string[];
  readonly slots: number;
  readonly cancelGrace: number;
  readonly drainTimeout: number;
  readonly name: string;
  readonly kafka: KafkaOptions;
  readonly warn: (message: string) => void;
}

const MAX_SLOTS = 10_000;
const DAY_SECONDS = 86_400;

export function executorSettings(options: ExecutorOptions): ExecutorSettings {
  return {
    api: apiOf(options.url, options.key ?? variable("API_TOKEN")),
    handlers: byName(options.handlers),
    queues: [...(options.queues ?? (variable("QUEUES") ?? "default").split(","))],
    slots: numberOf("slots", options.slots, "SLOTS", 100, 1, MAX_SLOTS),
    cancelGrace: numberOf("cancelGrace", options.cancelGrace, "CANCEL_GRACE", 10, 0, DAY_SECONDS),
    drainTimeout: numberOf("drainTimeout", options.drainTimeout, "DRAIN_TIMEOUT", 30, 0, DAY_SECONDS),
    name: options.name ?? `${hostname()}:${process.pid}`,
    kafka: { ...kafkaOfEnvironment(), ...options.kafka } as KafkaOptions,
    warn: options.warn ?? console.error,
  };
}

/** Return the address of the API and the key, from arguments or the environment. */
export function apiOf(url: string | undefined, key: string | undefined): Api {
  const address = url ?? variable("API_URL") ?? "http://127.0.0.1:8080";
  if (!/^https?:\/\/./.test(address)) {
    throw new TypeError(`url: ${JSON.stringify(address)} is no address; write one such as http://127.0.0.1:8080`);
  }
  return { url: address, key };
}

/** Return a variable of the environment, without its prefix; undefined if it is empty. */
export function variable(name: string): string | undefined {
  return process.env[`TIDEWHEEL_${name}`] || undefined;
}

function byName(handlers: readonly Handler[]): ReadonlyMap<string, Handler> {
  if (handlers.length === 0) throw new TypeError("handlers: has none; pass at least one of `defineHandler`");
  const named = new Map<string, Handler>();
  for (const each of handlers) {
    const name = JSON.stringify(each.name);
    if (named.has(each.name)) throw new TypeError(`handlers: two have the name ${name}; rename one`);
    named.set(each.name, each);
  }
  return named;
}

function numberOf(
  field: string, given: number | undefined, name: string, otherwise: number, least: number, most: number,
): number {
  const value = given ?? Number(variable(name) ?? otherwise);
  if (value >= least && value <= most) return value;
  const place = given === undefined ? `TIDEWHEEL_${name}` : field;
  throw new RangeError(`${place}: ${given ?? variable(name)} is not from ${least} to ${most}; correct or omit it`);
}

function kafkaOfEnvironment(): KafkaOptions {
  const password = variable("KAFKA_CONFIG_SASL_PASSWORD");
  const sasl = {
    mechanism: variable("KAFKA_CONFIG_SASL_MECHANISM") ?? "SCRAM-SHA-256",
    username: variable("KAFKA_CONFIG_SASL_USERNAME"),
    password,
  };
  return {
    bootstrapBrokers: (variable("KAFKA_BOOTSTRAP") ?? "127.0.0.1:9092").split(","),
    groupProtocol: variable("EXECUTOR_GROUP") ?? "consumer", // or `classic`, as the queue's other executors
    ...(password === undefined ? {} : { sasl }),
  } as KafkaOptions;
}
