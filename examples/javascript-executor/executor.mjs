// An executor: what docs/wire-contract.md asks for; [n] names the rule that a line is there for.

import { Consumer } from '@platformatic/kafka'
import { Attempt } from './attempt.mjs'
import { Door, LeaseLost, pause } from './door.mjs'
import { readMessage } from './messages.mjs'

const NOT_BEGUN = { status: 'released', begun: false }
const keyOf = ({ run_id, attempt }) => `${run_id}/${attempt}`

export class Executor {
  #running = new Map() // attempts whose handlers have not ended, by run and attempt
  #outcomes = new Map() // not yet recorded, likewise
  #consumers = new Set()
  #claimId = 0
  #claiming = Promise.resolve()
  #taken = 0 // slots held for claims under way
  #telling = false
  #stopping = false

  // Options: brokers, groupProtocol, queues, slots, handlers, name, graceMs, drainMs.
  constructor({ apiUrl, apiToken, ...options }) {
    Object.assign(this, options)
    this.door = new Door(apiUrl, apiToken)
  }

  async start() {
    await this.#register()
    this.#beat()
    this.#sweep()
    this.entered.topics.forEach(each => this.#consume(each))
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
    await this.door.post(`${this.#path}:leave`)
  }

  get #path() { return `/api/v1/executors/${this.entered.executor_id}` }
  get #free() { return this.slots - this.#running.size - this.#taken }

  async #register() { // [1]
    const { name, queues, slots } = this
    const handlers = Object.keys(this.handlers)
    this.beaten = performance.now()
    this.entered = await this.door.post('/api/v1/executors', { name, queues, slots, handlers })
    this.#claimId = 0
    console.log(`registered as ${this.entered.executor_id}`)
  }

  async #beat() { // [2]
    while (!this.left) {
      const begun = performance.now()
      try {
        const { signals } = await this.door.post(`${this.#path}:beat`, { stopping: this.#stopping })
        this.beaten = begun
        signals.forEach(each => this.#signal(each))
      } catch (error) {
        if (error instanceof LeaseLost) await this.#enterAnew(error)
        else console.error(error.message)
      }
      await pause(this.entered.beat_seconds * 1000)
    }
  }

  async #enterAnew(error) { // [3]
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
      const { name: clientId, brokers: bootstrapBrokers, groupProtocol } = this
      const consumer = new Consumer({ clientId, bootstrapBrokers, groupId: group, groupProtocol, autocommit: false })
      this.#consumers.add(consumer)
      try {
        const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest' })
        for await (const message of stream) await this.#take(message, stream)
      } catch (error) {
        if (!this.#stopping) console.error(`${topic}: ${error.message}; trying again`)
      }
      this.#consumers.delete(consumer)
      await consumer.close(true).catch(() => {})
      if (!this.#stopping) await pause(500)
    }
  }

  // A message, and what else has been fetched, as far as there are slots. [11]
  async #take(first, stream) {
    while (this.#free <= 0 && !this.#stopping) await pause(10)
    const messages = [first]
    this.#taken++
    for (let more; this.#free > 0 && (more = stream.read()); this.#taken++) messages.push(more)
    try {
      const wanted = await this.#wanted(messages)
      const wishes = [...wanted.values()].map(each => each.wish)
      if (wishes.length) await this.#claim({ wishes }, started => wanted.get(started.run_id).request)
    } finally {
      this.#taken -= messages.length
    }
    const last = new Map(messages.map(each => [each.partition, each])) // [10]
    for (const each of last.values()) Promise.resolve(each.commit()).catch(error => console.error(error.message))
  }

  async #wanted(messages) {
    const wanted = new Map()
    for (const { topic, partition, offset, timestamp, value } of messages) {
      const left = error => console.error(`left to others: ${error.message}`)
      const request = await readMessage(value, this.door).catch(left) // [6]
      if (!request || !Object.hasOwn(this.handlers, request.definition.target.handler)) continue // [7]
      const { run_id, attempt, job_version } = request
      const claimed_from = `${topic}/${partition}/${offset}@${timestamp}`
      wanted.set(run_id, { request, wish: { run_id, attempt, job_version, claimed_from } })
    }
    return wanted
  }

  async #sweep() { // [12]
    for (; !this.#stopping; await pause(this.entered.sweep_seconds * 1000)) {
      const sweep = Math.min(this.#free, this.entered.most_swept)
      if (sweep <= 0) continue
      this.#taken += sweep
      const read = started => readMessage(Buffer.from(started.request, 'base64'), this.door)
      await this.#claim({ sweep }, read).catch(error => console.error(error.message))
      this.#taken -= sweep
    }
  }

  // One after another, each with a higher number; one whose answer is lost is sent again as it was. [8]
  #claim(body, requestOf) {
    const work = async () => {
      if (this.#stopping) throw new Error('stopping')
      const { started } = await this.door.post(`${this.#path}:claim`, { claim_id: ++this.#claimId, ...body })
      for (const each of started) {
        const request = await Promise.resolve(requestOf(each)).catch(error => console.error(error.message))
        if (request) this.#begin(each, request)
        else this.#report({ run_id: each.run_id, attempt: each.attempt, ...NOT_BEGUN })
      }
    }
    const done = this.#claiming.then(work)
    this.#claiming = done.catch(() => {})
    return done
  }

  #begin(started, request) { // [9]
    const attempt = new Attempt(started, request, { door: this.door, report: each => this.#report(each) })
    const silent = performance.now() - this.beaten > this.entered.lease_seconds * 1000
    if (this.#stopping || silent) return attempt.end(NOT_BEGUN) // [4]
    this.#running.set(attempt.key, attempt)
    const handler = this.handlers[request.definition.target.handler]
    attempt.run(handler).finally(() => this.#running.delete(attempt.key))
  }

  async #report(outcome) { // [17]
    this.#outcomes.set(keyOf(outcome), outcome)
    if (this.#telling) return
    this.#telling = true
    while (this.#outcomes.size) {
      await this.#record([...this.#outcomes.values()].slice(0, this.entered.most_outcomes))
    }
    this.#telling = false
  }

  async #record(outcomes) {
    try {
      const answer = await this.door.post(`${this.#path}:finish`, { outcomes })
      for (const each of answer.outcomes) if (each.answer !== 'busy') this.#outcomes.delete(keyOf(each))
    } catch (error) {
      if (!error.refused) return console.error(error.message)
      const half = outcomes.length >> 1 // together they are too long, or one of them does not fit: find it
      if (half) for (const some of [outcomes.slice(0, half), outcomes.slice(half)]) await this.#record(some)
      else {
        const [{ run_id, attempt }] = outcomes
        const told = { error_type: 'UnrecordableOutcome', error_message: error.message, permanent: true }
        await this.#record([{ run_id, attempt, status: 'failed', ...told }])
      }
    }
  }
}
