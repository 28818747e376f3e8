// Errors that handlers throw for an outcome, and the outcome of any other error. [14] [16]

export class Permanent extends Error {}
export class Cancel extends Error {}
export class RetryAfter extends Error {
  constructor(seconds, message = `retry after ${seconds} s`) {
    super(message)
    this.seconds = seconds
  }
}
export class Snooze extends Error {
  constructor(seconds) {
    super(`snoozed for ${seconds} s`)
    this.seconds = seconds
  }
}
// The attempt is completed later, with its task token.
export class Waits extends Error {
  constructor(within) {
    super(`waits up to ${within}`)
    this.within = within
  }
}

const RESULT_BYTES = 64 * 1024

export function succeeded(result) {
  const text = JSON.stringify(result) ?? 'null'
  const bytes = Buffer.byteLength(text)
  if (bytes <= RESULT_BYTES) return { status: 'succeeded', result: result ?? null }
  const message = `the result has ${bytes} bytes, more than ${RESULT_BYTES}; return a reference instead`
  return { status: 'failed', error_type: 'ResultTooLarge', error_message: message, permanent: true }
}

export function fromError(error) {
  if (error instanceof Snooze) return { status: 'snoozed', delay: error.seconds }
  if (error instanceof Cancel) return { status: 'cancelled' }
  if (error instanceof Waits) return { status: 'waiting', within: error.within }
  const thrown = error instanceof Error ? error : new Error(String(error))
  const name = thrown.type ?? (thrown.name === 'Error' ? thrown.constructor.name : thrown.name)
  return {
    status: 'failed',
    error_type: String(name).slice(0, 255),
    error_message: thrown.message.slice(0, 4096),
    trace: (thrown.stack ?? '').slice(-32_768),
    permanent: thrown instanceof Permanent,
    ...(thrown instanceof RetryAfter ? { retry_after: thrown.seconds } : {})
  }
}
