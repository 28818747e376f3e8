import type { Context } from "./context.ts";
import { payloadReader } from "./payload.ts";
import type { PayloadOf, PayloadSchema } from "./schema.ts";

/** The work of a handler: gets the context of an attempt and the payload, returns the result. */
export type Work<Payload> = (ctx: Context, payload: Payload) => unknown;

/** A function that executes runs, under the name that jobs have as `target`. */
export interface Handler {
  readonly name: string;
  /** Check the payload and do the work. */
  readonly run: (ctx: Context, payload: unknown) => Promise<unknown>;
}

/** Define a handler whose payloads fit a schema: a JSON Schema, or one of zod. */
export function defineHandler<const S extends PayloadSchema>(
  name: string,
  schema: S,
  work: Work<PayloadOf<S>>,
): Handler;
/** Define a handler that takes any payload: a JSON value, `null` without a payload, or a `Buffer`. */
export function defineHandler(name: string, work: Work<unknown>): Handler;
export function defineHandler(name: string, ...rest: [Work<unknown>] | [PayloadSchema, Work<never>]): Handler {
  if (typeof name !== "string" || name === "") throw new TypeError("name: is empty; name the handler as its jobs do");
  const [schema, work] = rest.length === 1 ? [undefined, rest[0]] : rest;
  const read = payloadReader(name, schema);
  return { name, run: async (ctx, payload) => (work as Work<unknown>)(ctx, await read(payload)) };
}
