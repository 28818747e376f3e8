import { Ajv2020, type ValidateFunction } from "ajv/dist/2020.js";
import { failing } from "./outcomes.ts";
import type { JsonSchema, PayloadSchema, StandardIssue, StandardSchema } from "./schema.ts";

/** Returns a payload as its handler takes it; throws the end of an attempt whose payload is invalid. */
export type PayloadReader = (payload: unknown) => Promise<unknown>;

const ajv = new Ajv2020({ strict: false, validateFormats: false });

/** Return the reader of a handler's payloads. Throws if the schema itself is invalid. */
export function payloadReader(handler: string, schema: PayloadSchema | undefined): PayloadReader {
  if (schema === undefined) return async (payload) => payload;
  return isStandard(schema) ? standardReader(handler, schema) : jsonReader(handler, schema);
}

function standardReader(handler: string, schema: StandardSchema): PayloadReader {
  return async (payload) => {
    const read = await schema["~standard"].validate(payload);
    if (read.issues === undefined) return read.value;
    throw invalid(handler, read.issues.map((issue) => `${pathOf(issue)}: ${issue.message}`));
  };
}

function jsonReader(handler: string, schema: JsonSchema): PayloadReader {
  const validate = compiled(handler, schema);
  return async (payload) => {
    if (validate(payload)) return payload;
    const errors = validate.errors ?? [];
    throw invalid(handler, errors.map((each) => `payload${dotted(each.instancePath)}: ${each.message}`));
  };
}

function compiled(handler: string, schema: JsonSchema): ValidateFunction {
  try {
    return ajv.compile(schema);
  } catch (error) {
    const problem = `the schema of its payload is no JSON Schema (${String(error)})`;
    throw new TypeError(`handler ${JSON.stringify(handler)}: ${problem}; correct it`, { cause: error });
  }
}

// Permanent, since the same payload fails in every attempt.
function invalid(handler: string, problems: readonly string[]): Error {
  const remedy = `send a payload that fits the schema of handler ${JSON.stringify(handler)}`;
  return failing("InvalidPayload", `${problems.join(", ")}; ${remedy}`, { permanent: true });
}

function isStandard(schema: PayloadSchema): schema is StandardSchema {
  return "~standard" in schema;
}

function pathOf({ path = [] }: StandardIssue): string {
  return ["payload", ...path.map((part) => String(typeof part === "object" ? part.key : part))].join(".");
}

function dotted(pointer: string): string {
  return pointer.replaceAll("/", ".").replaceAll("~1", "/").replaceAll("~0", "~");
}
