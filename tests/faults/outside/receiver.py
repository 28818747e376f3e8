"""An HTTP receiver in a process of its own, with the effects of HTTP targets in a log of its own.

``python -m tests.faults.outside.receiver PORT LOG SEED SECRET``. The path names the answer: `/steady` succeeds at once,
`/slow` after about a second, `/held` after four, `/long` after ten, `/doomed` fails always. `/outside` answers 202, and
another process completes the attempt by its token. A `/random` call is slow, gets a 500 or is cut, as the seed decides
for its run and attempt. From the third attempt on it succeeds.
"""

import base64
import hashlib
import hmac
import os
import random
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import cast

from tests.faults.outside.due import micros
from tests.faults.outside.records import Log, now_us

_NEVER = threading.Event()
_WINDOW_SECONDS = 300  # Source: Standard Webhooks, "Verifying webhooks": five minutes


class Receiver(ThreadingHTTPServer):
    """The server, with its log and its seed."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, port: int, log: Path, seed: int, secret: str) -> None:
        self.log, self.seed = Log(log), seed
        self.secret = base64.b64decode(secret.removeprefix("whsec_"))
        self.calls = count()
        super().__init__(("127.0.0.1", port), _Call)

    def handle_error(self, request: object, client_address: object) -> None:
        """Leave out the traces of connections that a fault has cut."""


class _Call(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def receiver(self) -> Receiver:
        return cast("Receiver", self.server)

    def do_POST(self) -> None:
        """Record the call, and answer it as its path and the seed decide."""
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        number = f"{os.getpid()}-{next(self.receiver.calls)}"
        run_id, attempt = self.headers["tidewheel-run-id"], int(self.headers["tidewheel-attempt"])
        self.receiver.log.append(
            {
                "kind": "received",
                "call": number,
                "run_id": run_id,
                "attempt": attempt,
                "job_key": self.headers["tidewheel-job-key"],
                "scheduled_at": micros(self.headers["tidewheel-scheduled-at"]),
                "received": now_us(),
                "genuine": self._is_genuine(body),
                "token": self.headers["tidewheel-task-token"] or "",
            }
        )
        status, delay = self._answer(run_id, attempt)
        if delay:
            _NEVER.wait(delay)
        # Before the answer: once the caller has it, a fault of this process must not keep it out of the log.
        self.receiver.log.append(
            {"kind": "answered", "call": number, "answered": now_us() if status else None, "status": status}
        )
        if status:
            self.send_response(status)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
            self.wfile.flush()
        else:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the log has it."""

    def _answer(self, run_id: str, attempt: int) -> tuple[int, float]:
        draw = random.Random(f"{self.receiver.seed} {run_id} {attempt}")  # noqa: S311
        fixed = {
            "/steady": (200, 0.0),
            "/slow": (200, draw.uniform(0.3, 1.4)),
            "/held": (200, 4.0),
            "/long": (200, 10.0),
            "/outside": (202, 0.0),
            "/doomed": (500, 0.0),
        }
        if self.path in fixed:
            return fixed[self.path]
        chance = draw.random() if attempt < 3 else 1.0
        if chance < 0.05:
            return 0, 0
        if chance < 0.12:
            return 500, 0
        return 200, draw.uniform(0.2, 2.0) if chance < 0.25 else 0

    def _is_genuine(self, body: bytes) -> bool:
        """Verify body, id and signature by the text of the standard."""
        name, sent = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        signed = hmac.new(self.receiver.secret, f"{name}.{sent}.".encode() + body, hashlib.sha256).digest()
        given = [part.partition(",")[2] for part in (self.headers["webhook-signature"] or "").split()]
        recent = abs(int(sent or 0) - now_us() // 1_000_000) < _WINDOW_SECONDS
        expected = hashlib.sha256(body).hexdigest() == self.headers["x-body"]
        same = name == self.headers["idempotency-key"] == self.headers["tidewheel-run-id"]
        return recent and expected and same and base64.b64encode(signed).decode() in given


def main(port: str, log: str, seed: str, secret: str) -> None:
    """Serve until the process is killed."""
    Receiver(int(port), Path(log), int(seed), secret).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
