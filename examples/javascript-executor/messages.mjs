// Avro single-object encoding: C3 01, the fingerprint of the writer's schema, the record.

import avro from 'avsc'

const types = new Map()

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
