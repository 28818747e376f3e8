// The HTTP calls of the contract. Each may be repeated, so it is repeated until its response comes.

export class LeaseLost extends Error {}

const FIRST_PAUSE_MS = 100
const LONGEST_PAUSE_MS = 2000
const RESPONSE_MS = 30_000

export const pause = ms => new Promise(resolve => setTimeout(resolve, ms))

export class Api {
  constructor(url, token) {
    this.url = url
    this.headers = { 'content-type': 'application/json', ...(token ? { authorization: `Bearer ${token}` } : {}) }
  }

  // `until` is an AbortSignal that ends the repeats, for a process that has no time left.
  async post(path, body = {}, { until, headers = this.headers } = {}) {
    for (let ms = FIRST_PAUSE_MS; ; ms = Math.min(ms * 2, LONGEST_PAUSE_MS)) {
      until?.throwIfAborted()
      let response
      try {
        const signal = AbortSignal.timeout(RESPONSE_MS)
        response = await fetch(this.url + path, { method: 'POST', headers, body: JSON.stringify(body), signal })
        if (response.status < 500) return await read(response)
      } catch (error) {
        if (error instanceof LeaseLost || error.rejected) throw error
        console.error(`${path}: ${error.cause?.code ?? error.message}; trying again`)
      }
      await pause(ms * (0.5 + Math.random() / 2))
    }
  }

  async schema(fingerprint) {
    const response = await fetch(`${this.url}/api/v1/schemas/${fingerprint}`)
    if (!response.ok) throw new Error(`no schema ${fingerprint}`)
    return response.json()
  }
}

async function read(response) {
  if (response.status === 204) return null
  const content = await response.json()
  if (response.ok) return content
  if (content.code === 'unknown_executor') throw new LeaseLost(content.detail)
  throw Object.assign(new Error(content.detail), { rejected: true, code: content.code })
}
