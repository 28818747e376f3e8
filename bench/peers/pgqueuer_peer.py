"""pgqueuer in the database of PG*: `enqueue JOBS`, then `process JOBS`; says how many, and seconds for which, as JSON.

Its recommended settings for throughput: array enqueue, batches of 500, an asyncpg pool of 8, uvloop, its own 30 s poll.
Runs in the peers' own environment, so that nothing here is imported by Tidewheel.
"""

# pyright: basic, reportMissingImports=false
# It is not installed where types are checked.

import json
import sys
import time
from typing import Any

_AT_ONCE = 5000
_BATCH = 500
_POOL = 8


async def enqueue(jobs: int) -> dict[str, float]:
    """Make the schema and enqueue so many jobs; without the schema's seconds."""
    import asyncpg
    from pgqueuer.queries import Queries

    async with asyncpg.create_pool(min_size=_POOL, max_size=_POOL) as pool:
        queries: Any = Queries.from_asyncpg_pool(pool)
        await queries.install()
        started = time.monotonic()
        for first in range(0, jobs, _AT_ONCE):
            some = min(_AT_ONCE, jobs - first)
            await queries.enqueue(["noop"] * some, [b"x"] * some, [0] * some)
        return {"seconds": time.monotonic() - started, "timed": jobs, "handled": 0}


async def process(jobs: int) -> dict[str, float]:
    """Work until nothing is left; the clock starts when a tenth is handled, as Tidewheel's does."""
    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.types import QueueExecutionMode

    handled, started, warm = 0, time.monotonic(), jobs // 10

    async def noop(job: object) -> None:
        nonlocal handled, started
        handled += 1
        if handled == warm:
            started = time.monotonic()

    async with asyncpg.create_pool(min_size=_POOL, max_size=_POOL) as pool:
        peer: Any = PgQueuer.from_asyncpg_pool(pool)
        peer.entrypoint("noop")(noop)
        await peer.run(batch_size=_BATCH, mode=QueueExecutionMode.drain)
        return {"seconds": time.monotonic() - started, "timed": handled - warm, "handled": handled}


def main() -> None:
    """As the arguments say."""
    import uvloop

    what, jobs = sys.argv[1:]
    print(json.dumps(uvloop.run((enqueue if what == "enqueue" else process)(int(jobs)))))


if __name__ == "__main__":
    main()
