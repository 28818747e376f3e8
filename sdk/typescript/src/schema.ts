// Schemas of payloads: JSON Schema, or any library of Standard Schema, such as zod. Types follow from either.

/** A JSON Schema (draft 2020-12). `format` is an annotation. */
export type JsonSchema = Readonly<Record<string, unknown>>;

/** What zod and other libraries share: https://standardschema.dev. */
export interface StandardSchema {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => StandardResult | Promise<StandardResult>;
    readonly types?: { readonly input: unknown; readonly output: unknown } | undefined;
  };
}

export type StandardResult =
  | { readonly value: unknown; readonly issues?: undefined }
  | { readonly issues: readonly StandardIssue[] };

export interface StandardIssue {
  readonly message: string;
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined;
}

export type PayloadSchema = JsonSchema | StandardSchema;

/** The type of the payloads that a schema accepts. */
export type PayloadOf<S> = S extends StandardSchema
  ? NonNullable<S["~standard"]["types"]>["output"]
  : FromJsonSchema<S>;

/** The type of a JSON Schema: of `type`, `properties`, `required`, `items`, `enum`, `const`, `anyOf` and `oneOf`. */
export type FromJsonSchema<S> = S extends { readonly const: infer Value }
  ? Value
  : S extends { readonly enum: readonly (infer Value)[] }
    ? Value
    : S extends { readonly anyOf: readonly (infer Each)[] } | { readonly oneOf: readonly (infer Each)[] }
      ? EachOf<Each>
      : S extends { readonly type: infer Type }
        ? OfType<S, Type extends readonly (infer Each)[] ? Each : Type>
        : unknown;

interface Plain {
  string: string;
  number: number;
  integer: number;
  boolean: boolean;
  null: null;
}

type EachOf<S> = S extends unknown ? FromJsonSchema<S> : never;

type OfType<S, Type> = Type extends keyof Plain
  ? Plain[Type]
  : Type extends "array"
    ? (S extends { readonly items: infer Item } ? FromJsonSchema<Item> : unknown)[]
    : Type extends "object"
      ? OfObject<S>
      : unknown;

type OfObject<S> = S extends { readonly properties: infer P }
  ? { -readonly [K in keyof P as K extends RequiredOf<S> ? K : never]: FromJsonSchema<P[K]> } & {
      -readonly [K in keyof P as K extends RequiredOf<S> ? never : K]?: FromJsonSchema<P[K]>;
    }
  : Record<string, OfAdditional<S>>;

type OfAdditional<S> = S extends { readonly additionalProperties: infer Value extends object }
  ? FromJsonSchema<Value>
  : unknown;

type RequiredOf<S> = S extends { readonly required: readonly (infer Name)[] } ? Name : never;
