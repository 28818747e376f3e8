// The handlers of this executor, by the name that jobs call them.

import { Permanent } from './outcomes.mjs'

export const handlers = {
  async 'send-email'(ctx, payload) {
    if (!payload?.to) throw new Permanent('the payload names nobody to send to')
    ctx.log(`sending to ${payload.to}`)
    return { sent: payload.to, key: ctx.idempotencyKey }
  }
}
