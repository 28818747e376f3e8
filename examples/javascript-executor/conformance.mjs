// The handlers of the conformance test (tests/conformance/README.md).

import { appendFileSync, existsSync } from 'node:fs'
import { pause } from './api.mjs'
import { Cancel, Permanent, RetryAfter, Snooze, Waits } from './outcomes.mjs'

function note(ctx, what, more = {}) {
  const line = JSON.stringify({ run_id: ctx.runId, attempt: ctx.attempt, what, ...more })
  appendFileSync(process.env.TIDEWHEEL_CONFORMANCE_EFFECTS, line + '\n')
}

const typed = (error, type) => Object.assign(error, { type })

export const handlers = {
  async 'conformance.echo'(ctx, payload) {
    note(ctx, 'echo', { traceparent: ctx.traceparent })
    return payload
  },
  async 'conformance.hold'(ctx, { until }) {
    note(ctx, 'hold')
    while (!existsSync(until)) {
      if (ctx.signal.aborted) {
        note(ctx, 'stopped')
        throw ctx.signal.reason
      }
      await pause(20)
    }
    return 'held'
  },
  async 'conformance.stubborn'(ctx, { until }) {
    note(ctx, 'stubborn')
    while (!existsSync(until)) await pause(20)
    return 'held'
  },
  async 'conformance.end'(ctx, { how, times = 1000, type = 'Broken', message = 'as asked', seconds = 0 }) {
    note(ctx, how)
    if (ctx.attempt > times) return 'at last'
    const errors = {
      fail: () => new Error(message),
      permanent: () => new Permanent(message),
      retry_after: () => new RetryAfter(seconds, message),
      snooze: () => new Snooze(seconds),
      cancel: () => new Cancel(message),
      wait: () => new Waits('1h')
    }
    if (how === 'wait') note(ctx, 'token', { token: ctx.taskToken })
    throw typed(errors[how](), type)
  },
  async 'conformance.checkpoint'(ctx, payload) {
    note(ctx, 'checkpoint')
    if (ctx.checkpoint !== null) return ctx.checkpoint
    await ctx.heartbeat({ done: 1 }, payload)
    throw typed(new Error('after the checkpoint'), 'Broken')
  },
  async 'conformance.large'(ctx, { bytes }) {
    note(ctx, 'large')
    return 'x'.repeat(bytes)
  },
  async 'conformance.print'(ctx, { line, times }) {
    note(ctx, 'print')
    for (let n = 0; n < times; n++) ctx.log(line)
  }
}
