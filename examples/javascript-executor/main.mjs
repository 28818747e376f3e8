// Starts the executor with what the environment says, and stops it at SIGTERM.

import { hostname } from 'node:os'
import { resolve } from 'node:path'
import { Executor } from './executor.mjs'

const told = (name, otherwise) => process.env[`TIDEWHEEL_${name}`] ?? otherwise
const { handlers } = await import(resolve(told('HANDLERS', new URL('handlers.mjs', import.meta.url).pathname)))

const executor = new Executor({
  apiUrl: told('API_URL', 'http://127.0.0.1:8080'),
  apiToken: told('API_TOKEN'),
  brokers: told('KAFKA_BOOTSTRAP', '127.0.0.1:9092').split(','),
  groupProtocol: told('EXECUTOR_GROUP', 'consumer'), // or classic: as the other executors of the queue
  queues: told('QUEUES', 'default').split(','),
  slots: Number(told('SLOTS', '100')),
  graceMs: Number(told('CANCEL_GRACE', '10')) * 1000,
  drainMs: Number(told('DRAIN_TIMEOUT', '30')) * 1000,
  name: `${hostname()}:${process.pid}`,
  handlers
})

for (const signal of ['SIGTERM', 'SIGINT']) {
  process.once(signal, async () => {
    await executor.stop()
    process.exit(0)
  })
}
await executor.start()
