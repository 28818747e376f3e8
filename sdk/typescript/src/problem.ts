import type { FieldError, Problem as Document } from "./api.ts";

/** A refusal by the API (RFC 9457). `errors` names each invalid field, with its problem and the remedy. */
export class Problem extends Error {
  override readonly name = "Problem";
  readonly status: number;
  /** The kind of the refusal, such as `invalid` or `unknown_job`. */
  readonly code: string;
  readonly errors: readonly FieldError[];
  /** The seconds after which the API accepts a repeat, if it names them. */
  readonly retryAfter: number | undefined;

  constructor(document: Document, retryAfter?: number) {
    super(document.detail);
    this.status = document.status;
    this.code = document.code;
    this.errors = document.errors ?? [];
    this.retryAfter = retryAfter;
  }

  /** True if the same call can succeed later. */
  get isTemporary(): boolean {
    return this.status === 429 || this.status >= 500 || this.code === "busy";
  }
}

/** Return the refusal that a response contains. */
export async function problemOf(response: Response): Promise<Problem> {
  const text = await response.text();
  const retryAfter = Number(response.headers.get("retry-after") ?? Number.NaN);
  return new Problem(documentOf(text, response), Number.isNaN(retryAfter) ? undefined : retryAfter);
}

function documentOf(text: string, { status, statusText, url }: Response): Document {
  if (text.startsWith("{")) return JSON.parse(text) as Document;
  const detail = `${url} answers ${status} ${statusText}, which is no answer of Tidewheel; correct \`url\``;
  return { type: "about:blank", title: statusText, status, code: `http_${status}`, detail };
}
