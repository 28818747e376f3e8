// Calls of the API. Each can be repeated with the same effect, so each is repeated until its answer comes.

import { setTimeout as sleep } from "node:timers/promises";
import { ROUTES, type Operations } from "./api.ts";
import { Problem, problemOf } from "./problem.ts";

const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 2000;
const ANSWER_MS = 30_000;

/** The address of the API, and the key or token that opens it. */
export interface Api {
  readonly url: string;
  readonly key?: string | undefined;
}

export interface Sent<Name extends keyof Operations> {
  /** The fields of the route's address. */
  readonly path?: Readonly<Record<string, string>>;
  readonly query?: Operations[Name]["query"];
  readonly body?: Operations[Name]["body"];
  readonly headers?: Readonly<Record<string, string>>;
}

export interface Repeats {
  /** For how long the call is repeated; without end by default. */
  readonly seconds?: number;
  /** Ends the repeats. */
  readonly signal?: AbortSignal | undefined;
  /** How long one try waits for its answer. */
  readonly answerMs?: number;
  /** Gets the reason of each repeat. */
  readonly warn?: (message: string) => void;
}

/**
 * Call an operation of the API; return its answer.
 *
 * Throws a `Problem` if the API refuses the call, and the reason of `signal` when it aborts.
 */
export async function call<Name extends keyof Operations>(
  api: Api,
  name: Name,
  sent: Sent<Name>,
  { seconds = Infinity, signal, answerMs = ANSWER_MS, warn }: Repeats = {},
): Promise<Operations[Name]["answer"]> {
  const [address, request] = requestOf(api, name, sent);
  const end = performance.now() + seconds * 1000;
  for (let longest = FIRST_PAUSE_MS; ; longest = Math.min(longest * 2, LONGEST_PAUSE_MS)) {
    signal?.throwIfAborted();
    const tried = AbortSignal.timeout(answerMs);
    try {
      const response = await fetch(address, { ...request, signal: signal ? AbortSignal.any([signal, tried]) : tried });
      return (await read(response)) as Operations[Name]["answer"];
    } catch (error) {
      signal?.throwIfAborted();
      const isProblem = error instanceof Problem;
      if (isProblem && !error.isTemporary) throw error;
      const pause = Math.max(longest * (1 - Math.random() / 2), isProblem ? (error.retryAfter ?? 0) * 1000 : 0);
      if (performance.now() + pause > end) throw isProblem ? error : unanswered(api, seconds, error);
      warn?.(`${name}: ${reasonOf(error)}; trying again`);
      await sleep(pause, undefined, { signal }).catch(() => undefined);
    }
  }
}

function requestOf<Name extends keyof Operations>(
  { url, key }: Api,
  name: Name,
  { path = {}, query, body, headers: given }: Sent<Name>,
): [URL, RequestInit] {
  const [method, template] = ROUTES[name];
  const filled = template.replace(/{(\w+)}/g, (_, field) => encodeURIComponent(path[field] ?? ""));
  const address = new URL(url.replace(/\/$/, "") + filled);
  for (const [field, value] of Object.entries(query ?? {})) {
    for (const each of [value].flat()) address.searchParams.append(field, String(each));
  }
  const headers = new Headers(given);
  if (key) headers.set("Authorization", `Bearer ${key}`);
  if (body !== undefined) headers.set("Content-Type", "application/json");
  return [address, { method, headers, body: body === undefined ? null : JSON.stringify(body) }];
}

async function read(response: Response): Promise<unknown> {
  if (!response.ok) throw await problemOf(response);
  return response.status === 204 ? undefined : response.json();
}

function unanswered({ url }: Api, seconds: number, cause: unknown): Error {
  const problem = `url: ${url} does not answer for ${seconds} s (${reasonOf(cause)})`;
  return new Error(`${problem}; start the API, or correct \`url\``, { cause });
}

function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { cause } = error;
  return cause instanceof Error ? cause.message || String((cause as NodeJS.ErrnoException).code) : error.message;
}
