"""procrastinate in the database of PG*: `enqueue JOBS`, then `process JOBS`; how many, and seconds for which, as JSON.

Its recommended settings for throughput: deferred in batches, one async worker with 32 at once, a poll of 100 ms,
finished jobs deleted. Runs in the peers' own environment, so that nothing here is imported by Tidewheel.
"""

# pyright: basic, reportMissingImports=false
# It is not installed where types are checked.

import asyncio
import json
import sys
import time
from typing import Any

_BATCH = 1000
_CONCURRENCY = 32
_POLL_SECONDS = 0.1


class Peer:
    """The application, with one task."""

    def __init__(self, jobs: int) -> None:
        from procrastinate import App, PsycopgConnector

        self.jobs, self.warm = jobs, jobs // 10
        self.handled, self.started = 0, 0.0
        self.app: Any = App(connector=PsycopgConnector(min_size=1, max_size=8))
        self.task: Any = self.app.task(name="noop")(self._noop)

    async def enqueue(self) -> dict[str, float]:
        """Make the schema and defer so many jobs; without the schema's seconds."""
        async with self.app.open_async():
            await self.app.schema_manager.apply_schema_async()
            started = time.monotonic()
            for first in range(0, self.jobs, _BATCH):
                last = min(first + _BATCH, self.jobs)
                await self.task.batch_defer_async(*({"number": n} for n in range(first, last)))
            return {"seconds": time.monotonic() - started, "timed": self.jobs, "handled": 0}

    async def process(self) -> dict[str, float]:
        """Work until nothing is left; the clock starts when a tenth is handled, as Tidewheel's does."""
        async with self.app.open_async():
            self.started = time.monotonic()
            await self.app.run_worker_async(
                wait=False,
                concurrency=_CONCURRENCY,
                fetch_job_polling_interval=_POLL_SECONDS,
                delete_jobs="always",
                install_signal_handlers=False,
            )
            seconds = time.monotonic() - self.started
            return {"seconds": seconds, "timed": self.handled - self.warm, "handled": self.handled}

    async def _noop(self, number: int) -> None:
        self.handled += 1
        if self.handled == self.warm:
            self.started = time.monotonic()


def main() -> None:
    """As the arguments say."""
    what, jobs = sys.argv[1:]
    peer = Peer(int(jobs))
    print(json.dumps(asyncio.run(peer.enqueue() if what == "enqueue" else peer.process())))


if __name__ == "__main__":
    main()
