// The HTTP side of the contract: every call may be repeated, so it is repeated until it is answered.

export class LeaseLost extends Error {}

const FIRST_PAUSE_MS = 100
const LONGEST_PAUSE_MS = 2000
const ANSWER_MS = 30_000

export const pause = ms => new Promise(resolve => setTimeout(resolve, ms))

export class Door {
  constructor(url, token) {
    this.url = url
    this.headers = { 'content-type': 'application/json', ...(token ? { authorization: `Bearer ${token}` } : {}) }
  }

  // `until` is an AbortSignal that ends the repeating, for a process that has no time left.
  async post(path, body = {}, { until, headers = this.headers } = {}) {
    for (let ms = FIRST_PAUSE_MS; ; ms = Math.min(ms * 2, LONGEST_PAUSE_MS)) {
      until?.throwIfAborted()
      let answer
      try {
        const signal = AbortSignal.timeout(ANSWER_MS)
        answer = await fetch(this.url + path, { method: 'POST', headers, body: JSON.stringify(body), signal })
        if (answer.status < 500) return await read(answer)
      } catch (error) {
        if (error instanceof LeaseLost || error.refused) throw error
        console.error(`${path}: ${error.cause?.code ?? error.message}; trying again`)
      }
      await pause(ms * (0.5 + Math.random() / 2))
    }
  }

  async schema(fingerprint) {
    const answer = await fetch(`${this.url}/api/v1/schemas/${fingerprint}`)
    if (!answer.ok) throw new Error(`no schema ${fingerprint}`)
    return answer.json()
  }
}

async function read(answer) {
  if (answer.status === 204) return null
  const content = await answer.json()
  if (answer.ok) return content
  if (content.code === 'unknown_executor') throw new LeaseLost(content.detail)
  throw Object.assign(new Error(content.detail), { refused: true, code: content.code })
}
