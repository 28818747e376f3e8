export type {
  ChangedJob, CreatedRun, FieldError, JobSpec, JobSummary, JobTrigger, RunSummary, RunWithAttempts,
} from "./api.ts";
export {
  Client, type ClientOptions, type JobQuery, type RunQuery, type TriggerOptions, type WaitOptions,
} from "./client.ts";
export type { Context } from "./context.ts";
export { runExecutor, startExecutor, type Executor } from "./executor.ts";
export { defineHandler, type Handler, type Work } from "./handler.ts";
export { awaitCompletion, cancel, Ending, permanent, retryAfter, snooze } from "./outcomes.ts";
export { Problem } from "./problem.ts";
export type { FromJsonSchema, JsonSchema, PayloadOf, PayloadSchema, StandardSchema } from "./schema.ts";
export type { ExecutorOptions } from "./settings.ts";
