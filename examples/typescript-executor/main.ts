// An executor with one handler: write yours beside it.

import { defineHandler, runExecutor } from "tidewheel";

const letter = { type: "object", properties: { to: { type: "string", minLength: 1 } }, required: ["to"] } as const;

const sendEmail = defineHandler("send-email", letter, async (ctx, { to }) => {
  ctx.log(`sending to ${to}`);
  return { sent: to, key: ctx.idempotencyKey };
});

await runExecutor({ handlers: [sendEmail] });
