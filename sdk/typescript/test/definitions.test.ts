// Errors of definitions and settings name the field and the remedy.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, defineHandler, startExecutor, type FromJsonSchema } from "../src/index.ts";

const anything = defineHandler("anything", () => null);

test("a handler without a name or with a wrong schema is refused", () => {
  assert.throws(() => defineHandler("", () => null), /^TypeError: name: .*; /);
  assert.throws(() => defineHandler("wrong", { type: "text" }, () => null), /handler "wrong": .*; correct it/);
});

test("settings out of their range are refused before any call", async () => {
  await assert.rejects(startExecutor({ handlers: [] }), /handlers: .*; /);
  await assert.rejects(startExecutor({ handlers: [anything, anything] }), /handlers: .*"anything"; rename one/);
  await assert.rejects(startExecutor({ handlers: [anything], slots: 0 }), /slots: 0 .*; /);
  await assert.rejects(startExecutor({ handlers: [anything], url: "localhost:8080" }), /url: .*; /);
});

test("a client names an address without an answer", async () => {
  const client = new Client({ url: "http://127.0.0.1:9", patience: 0 });
  await assert.rejects(client.trigger("any"), /^Error: url: http:\/\/127\.0\.0\.1:9 does not answer .*; /);
});

test("types follow from a JSON Schema", () => {
  const schema = {
    type: "object",
    properties: {
      id: { type: "string" },
      kind: { enum: ["new", "old"] },
      sizes: { type: "array", items: { type: "integer" } },
      note: { type: ["string", "null"] },
      place: { anyOf: [{ const: "here" }, { type: "object", additionalProperties: { type: "number" } }] },
    },
    required: ["id", "kind"],
  } as const;
  const least: FromJsonSchema<typeof schema> = { id: "a", kind: "new" };
  const most: FromJsonSchema<typeof schema> = { ...least, sizes: [1], note: null, place: { x: 1 } };
  // @ts-expect-error: `kind` is one of two texts
  const wrong: FromJsonSchema<typeof schema> = { id: "a", kind: "other" };
  assert.equal(most.id, wrong.id);
});
