// One attempt: its handler, its timeouts, and the one report of how it ended.

import { payloadOf } from './messages.mjs'
import { fromError, succeeded } from './outcomes.mjs'

const OUTPUT_CHARACTERS = 64 * 1024

export class Attempt {
  #reported = false
  #timers = []
  #output = ''
  #stop = new AbortController()

  constructor(started, request, { door, report }) {
    Object.assign(this, { started, request, door, report })
    this.key = `${started.run_id}/${started.attempt}`
  }

  // Resolves when the handler has really ended, which may be after the report.
  async run(handler) { // [13]
    const { start_to_close_ms: close, heartbeat_ms: beat } = this.request.definition
    this.#timeOut('start_to_close', close)
    if (this.started.closes_in_seconds !== null) {
      this.#timeOut('schedule_to_close', this.started.closes_in_seconds * 1000)
    }
    if (beat) this.beats = this.#timeOut('heartbeat', beat)
    try {
      this.end(succeeded(await handler(this.#context(), payloadOf(this.request))))
    } catch (error) {
      const stopped = this.#stop.signal.aborted && error === this.#stop.signal.reason
      this.end(stopped ? { status: 'cancelled' } : fromError(error))
    }
  }

  // Only the first end counts. [17]
  end(outcome) {
    if (this.#reported) return
    this.#reported = true
    this.#timers.forEach(clearTimeout)
    const output = this.#output ? { output: this.#output.slice(-OUTPUT_CHARACTERS) } : {}
    const { run_id, attempt } = this.started
    this.report({ run_id, attempt, ...outcome, ...output })
  }

  // Asked to stop: the handler sees it; whoever does not listen is fenced off after the grace period.
  cancel(graceMs) {
    if (this.#stop.signal.aborted) return
    this.#stop.abort(new Error('asked to stop'))
    this.#timers.push(setTimeout(() => this.end({ status: 'cancelled' }), graceMs))
  }

  // Nothing it says counts any more: the lease was lost, or its run has ended.
  abandon() {
    this.#reported = true
    this.#timers.forEach(clearTimeout)
    this.#stop.abort(new Error('no longer ours'))
  }

  // Time is up: said at once, whether or not the handler listens.
  #timeOut(timeout, ms) {
    const timer = setTimeout(() => {
      this.#stop.abort(new Error(`${timeout} has passed`))
      this.end({ status: 'timed_out', timeout })
    }, Math.min(ms, 2 ** 31 - 1))
    this.#timers.push(timer)
    return timer
  }

  #context() {
    const { request, started } = this
    return {
      runId: started.run_id,
      attempt: started.attempt,
      jobKey: request.definition.job_key,
      idempotencyKey: started.run_id, // send it with every effect: it is the same for all attempts
      scheduledAt: new Date(Number(request.scheduled_at) / 1000),
      checkpoint: request.checkpoint ? JSON.parse(request.checkpoint.toString()) : null,
      taskToken: started.task_token,
      signal: this.#stop.signal,
      log: text => { this.#output = (this.#output + text + '\n').slice(-2 * OUTPUT_CHARACTERS) },
      heartbeat: (progress, checkpoint) => this.#heartbeat({ progress, checkpoint })
    }
  }

  async #heartbeat(said) { // [18]
    this.beats?.refresh()
    const headers = { 'content-type': 'application/json', authorization: `Bearer ${this.started.task_token}` }
    await this.door.post(`/api/v1/runs/${this.started.run_id}:heartbeat`, said, { until: this.#stop.signal, headers })
  }
}
