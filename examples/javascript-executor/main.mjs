// Starts the executor with the settings of the environment, and stops it at SIGTERM.

import { readFileSync } from 'node:fs'
import { hostname } from 'node:os'
import { resolve } from 'node:path'

// Before the packages are imported: on an older Node their import fails with an error that does not name the cause.
const required = JSON.parse(readFileSync(new URL('package.json', import.meta.url))).engines.node.replace('>=', '')
if (isOlder(process.versions.node, required)) {
  console.error(`this executor needs Node ${required} or newer, and this is Node ${process.versions.node}: install a newer one`)
  process.exit(1)
}

const setting = (name, otherwise) => process.env[`TIDEWHEEL_${name}`] ?? otherwise
const { Executor } = await import('./executor.mjs')
const { handlers } = await import(resolve(setting('HANDLERS', new URL('handlers.mjs', import.meta.url).pathname)))

const executor = new Executor({
  apiUrl: setting('API_URL', 'http://127.0.0.1:8080'),
  apiToken: setting('API_TOKEN'),
  brokers: setting('KAFKA_BOOTSTRAP', '127.0.0.1:9092').split(','),
  sasl: setting('KAFKA_CONFIG_SASL_PASSWORD') && {
    mechanism: setting('KAFKA_CONFIG_SASL_MECHANISM', 'SCRAM-SHA-256'),
    username: setting('KAFKA_CONFIG_SASL_USERNAME'),
    password: setting('KAFKA_CONFIG_SASL_PASSWORD')
  },
  groupProtocol: setting('EXECUTOR_GROUP', 'consumer'), // or classic, like the other executors of the queue
  queues: setting('QUEUES', 'default').split(','),
  slots: Number(setting('SLOTS', '100')),
  graceMs: Number(setting('CANCEL_GRACE', '10')) * 1000,
  drainMs: Number(setting('DRAIN_TIMEOUT', '30')) * 1000,
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

function isOlder(version, than) {
  const [major, minor] = version.split('.').map(Number)
  const [leastMajor, leastMinor] = than.split('.').map(Number)
  return major < leastMajor || (major === leastMajor && minor < leastMinor)
}
