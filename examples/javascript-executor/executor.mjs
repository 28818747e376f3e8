// An executor by docs/wire-contract.md; [n] names the rule that a line implements.

import { Consumer } from '@platformatic/kafka'
import { Attempt } from './attempt.mjs'
import { Api, LeaseLost, pause } from './api.mjs'
import { proofOf, readMessage } from './messages.mjs'

const NOT_STARTED = { status: 'released', started: false }
const keyOf = ({ run_id, attempt }) => `${run_id}/${attempt}`

export class Executor {
  #running = new Map() // attempts whose handlers have not ended, by run and attempt
  #outcomes = new Map() // not yet recorded, likewise
  #consumers = new Set()
  #claimId = 0
  #claiming = Promise.resolve()
  #reserved = 0 // slots reserved for claims in progress
  #reporting = false
  #stopping = false

  // Options: brokers, sasl, groupProtocol, queues, slots, handlers, name, graceMs, drainMs.
  constructor({ apiUrl, apiToken, ...options }) {
    Object.assign(this, options)
    this.api = new Api(apiUrl, apiToken)
  }

  async start() {
    await this.#register()
    this.#heartbeat()
    this.#sweep()
    this.registration.topics.forEach(each => this.#consume(each))
  }

  async stop() { // [19]
    this.#stopping = true
    await Promise.all([...this.#consumers].map(each => each.close(true).catch(() => {})))
    await this.#claiming
    const drained = performance.now() + this.drainMs
    while (this.#running.size && performance.now() < drained) await pause(20)
    for (const attempt of this.#running.values()) attempt.end({ status: 'released' })
    while (this.#outcomes.size) await pause(20)
    this.left = true
    await this.api.post(`${this.#path}:leave`)
  }

  get #path() { return `/api/v1/executors/${this.registration.executor_id}` }
  get #free() { return this.slots - this.#running.size - this.#reserved }

  async #register() { // [1]
    const { name, queues, slots } = this
    const handlers = Object.keys(this.handlers)
    this.lastHeartbeat = performance.now()
    this.registration = await this.api.post('/api/v1/executors', { name, queues, slots, handlers })
    this.#claimId = 0
    console.log(`registered as ${this.registration.executor_id}`)
  }

  async #heartbeat() { // [2]
    while (!this.left) {
      const sentAt = performance.now()
      try {
        const { signals } = await this.api.post(`${this.#path}:heartbeat`, { stopping: this.#stopping })
        this.lastHeartbeat = sentAt
        signals.forEach(each => this.#signal(each))
      } catch (error) {
        if (error instanceof LeaseLost) await this.#registerAgain(error)
        else console.error(error.message)
      }
      await pause(this.registration.heartbeat_seconds * 1000)
    }
  }

  async #registerAgain(error) { // [3]
    console.error(error.message)
    for (const attempt of this.#running.values()) attempt.abandon()
    this.#outcomes.clear()
    await this.#register()
  }

  #signal({ kind, ...fence }) { // [15]
    const attempt = this.#running.get(keyOf(fence))
    if (kind === 'terminate') attempt?.end({ status: 'cancelled' })
    attempt?.cancel(this.graceMs)
  }

  async #consume({ topic, group }) {
    while (!this.#stopping) {
      const { name: clientId, brokers: bootstrapBrokers, sasl, groupProtocol } = this
      const consumer = new Consumer({ clientId, bootstrapBrokers, sasl, groupId: group, groupProtocol, autocommit: false })
      this.#consumers.add(consumer)
      try {
        const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest' })
        for await (const message of stream) await this.#claimMessages(message, stream)
      } catch (error) {
        if (!this.#stopping) console.error(`${topic}: ${error.message}; trying again`)
      }
      this.#consumers.delete(consumer)
      await consumer.close(true).catch(() => {})
      if (!this.#stopping) await pause(500)
    }
  }

  // Claims a message and others that were fetched, as many as there are free slots. [11]
  async #claimMessages(first, stream) {
    while (this.#free <= 0 && !this.#stopping) await pause(10)
    const messages = [first]
    this.#reserved++
    for (let more; this.#free > 0 && (more = stream.read()); this.#reserved++) messages.push(more)
    try {
      const requested = await this.#readMessages(messages)
      const runs = [...requested.values()].map(each => each.run)
      if (runs.length) await this.#claim({ runs }, started => requested.get(started.run_id).request)
    } finally {
      this.#reserved -= messages.length
    }
    const last = new Map(messages.map(each => [each.partition, each])) // [10]
    for (const each of last.values()) Promise.resolve(each.commit()).catch(error => console.error(error.message))
  }

  async #readMessages(messages) {
    const requested = new Map()
    for (const { topic, partition, offset, timestamp, value, headers } of messages) {
      const skip = error => console.error(`message skipped: ${error.message}`)
      const proof = proofOf(value, headers)
      const request = proof && await readMessage(value, this.api).catch(skip) // [6]
      if (!request || !Object.hasOwn(this.handlers, request.definition.target.handler)) continue // [7]
      const { run_id, attempt, job_version } = request
      const claimed_from = `${topic}/${partition}/${offset}@${timestamp}`
      requested.set(run_id, { request, run: { run_id, attempt, job_version, claimed_from, ...proof } })
    }
    return requested
  }

  async #sweep() { // [12]
    for (; !this.#stopping; await pause(this.registration.sweep_seconds * 1000)) {
      const sweep = Math.min(this.#free, this.registration.max_sweep)
      if (sweep <= 0) continue
      this.#reserved += sweep
      const read = started => readMessage(Buffer.from(started.request, 'base64'), this.api)
      await this.#claim({ sweep }, read).catch(error => console.error(error.message))
      this.#reserved -= sweep
    }
  }

  // Claims follow one another with rising numbers. A claim whose response is lost is repeated unchanged. [8]
  #claim(body, requestOf) {
    const work = async () => {
      if (this.#stopping) throw new Error('stopping')
      const { started } = await this.api.post(`${this.#path}:claim`, { claim_id: ++this.#claimId, ...body })
      for (const each of started) {
        const request = await Promise.resolve(requestOf(each)).catch(error => console.error(error.message))
        if (request) this.#start(each, request)
        else this.#report({ run_id: each.run_id, attempt: each.attempt, ...NOT_STARTED })
      }
    }
    const done = this.#claiming.then(work)
    this.#claiming = done.catch(() => {})
    return done
  }

  #start(started, request) { // [9]
    const attempt = new Attempt(started, request, { api: this.api, report: each => this.#report(each) })
    const silent = performance.now() - this.lastHeartbeat > this.registration.lease_seconds * 1000
    if (this.#stopping || silent) return attempt.end(NOT_STARTED) // [4]
    this.#running.set(attempt.key, attempt)
    const handler = this.handlers[request.definition.target.handler]
    attempt.run(handler).finally(() => this.#running.delete(attempt.key))
  }

  async #report(outcome) { // [17]
    this.#outcomes.set(keyOf(outcome), outcome)
    if (this.#reporting) return
    this.#reporting = true
    while (this.#outcomes.size) {
      await this.#record([...this.#outcomes.values()].slice(0, this.registration.max_outcomes))
    }
    this.#reporting = false
  }

  async #record(outcomes) {
    try {
      const response = await this.api.post(`${this.#path}:finish`, { outcomes })
      for (const each of response.outcomes) if (each.answer !== 'busy') this.#outcomes.delete(keyOf(each))
    } catch (error) {
      if (!error.rejected) return console.error(error.message)
      const half = outcomes.length >> 1 // the body is too long, or one outcome is invalid: find it
      if (half) for (const some of [outcomes.slice(0, half), outcomes.slice(half)]) await this.#record(some)
      else {
        const [{ run_id, attempt }] = outcomes
        const failure = { error_type: 'UnrecordableOutcome', error_message: error.message, permanent: true }
        await this.#record([{ run_id, attempt, status: 'failed', ...failure }])
      }
    }
  }
}
