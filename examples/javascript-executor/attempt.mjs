// One attempt: its handler, its timeouts, and its one report.

import { payloadOf } from './messages.mjs'
import { fromError, succeeded } from './outcomes.mjs'

const OUTPUT_CHARACTERS = 64 * 1024

export class Attempt {
  #reported = false
  #timers = []
  #output = ''
  #stop = new AbortController()

  constructor(started, request, { api, report }) {
    Object.assign(this, { started, request, api, report })
    this.key = `${started.run_id}/${started.attempt}`
  }

  // Resolves when the handler has ended, which may be after the report.
  async run(handler) { // [13]
    const { start_to_close_ms: close, heartbeat_ms: heartbeat } = this.request.definition
    this.#timeOut('start_to_close', close)
    const remaining = this.started.schedule_to_close_remaining_seconds
    if (remaining !== null) this.#timeOut('schedule_to_close', remaining * 1000)
    if (heartbeat) this.heartbeatTimer = this.#timeOut('heartbeat', heartbeat)
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

  // A cancel aborts the handler's signal. If the handler goes on, the attempt ends after the grace period.
  cancel(graceMs) {
    if (this.#stop.signal.aborted) return
    this.#stop.abort(new Error('stop requested'))
    this.#timers.push(setTimeout(() => this.end({ status: 'cancelled' }), graceMs))
  }

  // Its outcome is not reported: the lease was lost, or its run has ended.
  abandon() {
    this.#reported = true
    this.#timers.forEach(clearTimeout)
    this.#stop.abort(new Error('the attempt is over'))
  }

  // A timeout is reported at once, even if the handler ignores it.
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
      traceparent: request.traceparent, // send it with every call, so that its spans are in the run's trace
      taskToken: started.task_token,
      signal: this.#stop.signal,
      log: text => { this.#output = (this.#output + text + '\n').slice(-2 * OUTPUT_CHARACTERS) },
      heartbeat: (progress, checkpoint) => this.#heartbeat({ progress, checkpoint })
    }
  }

  async #heartbeat(report) { // [18]
    this.heartbeatTimer?.refresh()
    const headers = { 'content-type': 'application/json', authorization: `Bearer ${this.started.task_token}` }
    await this.api.post(`/api/v1/runs/${this.started.run_id}:heartbeat`, report, { until: this.#stop.signal, headers })
  }
}
