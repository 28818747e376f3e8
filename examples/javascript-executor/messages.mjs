// Avro single-object encoding: C3 01, the fingerprint of the writer's schema, the record.

import { createHash } from 'node:crypto'
import avro from 'avsc'

const types = new Map()

// The relay's signature, and the digest of the value that the API checks it with. Undefined without a signature. [6]
export function proofOf(value, headers) {
  for (const [name, content] of headers ?? []) {
    if (String(name) !== 'signature' || content?.length !== 28 || !value) continue
    return { signature: content.toString('latin1'), digest: createHash('sha256').update(value).digest('hex') }
  }
}

export async function readMessage(value, api) {
  const request = await decode(value, api)
  request.definition = await decode(request.definition, api)
  return request
}

async function decode(bytes, api) {
  if (bytes.length < 10 || bytes[0] !== 0xc3 || bytes[1] !== 0x01) throw new Error('no Avro single object')
  const fingerprint = bytes.subarray(2, 10).toString('hex')
  let type = types.get(fingerprint)
  if (!type) {
    type = avro.Type.forSchema(await api.schema(fingerprint), { wrapUnions: false })
    types.set(fingerprint, type)
  }
  return type.fromBuffer(bytes.subarray(10))
}

// The payload: the run's own, else its job's; parsed if its content type is JSON.
export function payloadOf(request) {
  const own = request.payload !== null
  const bytes = own ? request.payload : request.definition.payload
  const type = (own && request.payload_content_type) || request.definition.payload_content_type
  if (type !== 'application/json') return bytes
  return bytes.length ? JSON.parse(bytes.toString()) : undefined
}
