// Run messages: Avro single objects, which are C3 01, the fingerprint of the writer's schema, the record.

import { createHash } from "node:crypto";
import avro, { type Type } from "avsc";
import type { RunToClaim } from "./api.ts";
import { call, type Api } from "./http.ts";

/** The fields of a run message that this executor uses; schemas/run_request.avsc has all. */
export interface RunRequest {
  readonly run_id: string;
  readonly attempt: number;
  readonly job_version: number;
  readonly scheduled_at: number;
  readonly publish_at: number;
  readonly payload: Buffer | null;
  readonly payload_content_type: string | null;
  readonly labels: Record<string, string> | null;
  readonly traceparent: string | null;
  readonly checkpoint: Buffer | null;
  readonly definition: JobDefinition;
}

/** Likewise of schemas/job_definition.avsc. */
export interface JobDefinition {
  readonly tenant: string;
  readonly job_key: string;
  readonly target: { readonly handler: string | null };
  readonly payload: Buffer;
  readonly payload_content_type: string;
  readonly start_to_close_ms: number;
  readonly heartbeat_ms: number | null;
  readonly labels: Record<string, string>;
}

export type Proof = Required<Pick<RunToClaim, "signature" | "digest">>;

const HEAD_BYTES = 10;
const SIGNATURE_CHARACTERS = 28;
const SCHEMA_SECONDS = 5;

const types = new Map<string, Type>();

/** Return the relay's signature of a message, and the digest that the API checks; undefined without a signature. [6] */
export function proofOf(value: Buffer | null, headers: Iterable<readonly [Buffer, Buffer | null]>): Proof | undefined {
  for (const [name, content] of headers) {
    if (!value || name.toString() !== "signature" || content?.length !== SIGNATURE_CHARACTERS) continue;
    return { signature: content.toString("latin1"), digest: createHash("sha256").update(value).digest("hex") };
  }
  return undefined;
}

export async function readMessage(value: Buffer, api: Api): Promise<RunRequest> {
  const request = (await decode(value, api)) as RunRequest & { definition: Buffer };
  return { ...request, definition: (await decode(request.definition, api)) as JobDefinition };
}

/** Return the run's own payload, else its job's; parsed if its type is JSON. */
export function payloadOf({ payload, payload_content_type, definition }: RunRequest): unknown {
  const bytes = payload ?? definition.payload;
  const type = (payload !== null && payload_content_type) || definition.payload_content_type;
  if (type !== "application/json") return bytes;
  return bytes.length > 0 ? JSON.parse(bytes.toString()) : null;
}

async function decode(bytes: Buffer, api: Api): Promise<unknown> {
  if (bytes.length < HEAD_BYTES || bytes[0] !== 0xc3 || bytes[1] !== 0x01) throw new Error("no Avro single object");
  const fingerprint = bytes.subarray(2, HEAD_BYTES).toString("hex");
  const type = types.get(fingerprint) ?? (await fetchType(fingerprint, api));
  return type.fromBuffer(bytes.subarray(HEAD_BYTES));
}

async function fetchType(fingerprint: string, api: Api): Promise<Type> {
  const schema = await call(api, "getSchema", { path: { fingerprint } }, { seconds: SCHEMA_SECONDS });
  const type = avro.Type.forSchema(schema as Parameters<typeof Type.forSchema>[0], { wrapUnions: false });
  types.set(fingerprint, type);
  return type;
}
