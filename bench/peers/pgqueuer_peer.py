"""pgqueuer in the database of PG*: `enqueue JOBS`, then `process JOBS`; says seconds and how many, as JSON.

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


async def enqueue(jobs: int) -> tuple[float, int]:
    """Make the schema and enqueue so many jobs; seconds, without the schema's."""
    import asyncpg
    from pgqueuer.queries import Queries

    async with asyncpg.create_pool(min_size=_POOL, max_size=_POOL) as pool:
        queries: Any = Queries.from_asyncpg_pool(pool)
        await queries.install()
        started = time.monotonic()
        for first in range(0, jobs, _AT_ONCE):
            some = min(_AT_ONCE, jobs - first)
            await queries.enqueue(["noop"] * some, [b"x"] * some, [0] * some)
        return time.monotonic() - started, 0


async def process() -> tuple[float, int]:
    """Work until nothing is left; seconds, and how many were handled."""
    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.types import QueueExecutionMode

    handled = 0

    async def noop(job: object) -> None:
        nonlocal handled
        handled += 1

    async with asyncpg.create_pool(min_size=_POOL, max_size=_POOL) as pool:
        peer: Any = PgQueuer.from_asyncpg_pool(pool)
        peer.entrypoint("noop")(noop)
        started = time.monotonic()
        await peer.run(batch_size=_BATCH, mode=QueueExecutionMode.drain)
        return time.monotonic() - started, handled


def main() -> None:
    """As the arguments say."""
    import uvloop

    what, jobs = sys.argv[1:]
    seconds, handled = uvloop.run(enqueue(int(jobs)) if what == "enqueue" else process())
    print(json.dumps({"seconds": seconds, "handled": handled}))


if __name__ == "__main__":
    main()
