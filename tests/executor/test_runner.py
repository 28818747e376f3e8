"""A target of one's own, as docs/targets.md writes it."""

import asyncio
import re
from collections.abc import Callable
from typing import cast

from tests.executor.attempting import attempt_of
from tests.strict_types import ROOT
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.runners.runner import Runner
from tidewheel.runs import AttemptOutcome

_EXAMPLE = re.compile(r"^## A target of your own$.*?^```python\n(?P<source>.*?)^```$", re.MULTILINE | re.DOTALL)


def example(port: int) -> Runner:
    """The runner of the page, for a server of this test's."""
    found = _EXAMPLE.search((ROOT / "docs/targets.md").read_text(encoding="utf-8"))
    assert found is not None
    made: dict[str, object] = {}
    exec(found["source"].replace("7000", str(port)), made)  # noqa: S102 - it is the page that is tested
    return cast("Callable[[], Runner]", made["LineRunner"])()


def call(answer: bytes | None) -> Outcome:
    """Return the outcome of the page's runner for a response; None is no server."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b'{"a":1}\n'
        writer.write(answer or b"")
        writer.close()

    async def work() -> Outcome:
        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        if answer is None:
            server.close()
            await server.wait_closed()
        runner = example(port)
        outcome = await runner.run(attempt_of({"payload": {"a": 1}}))
        await runner.close()
        server.close()
        return outcome

    return asyncio.run(work())


def test_example_of_the_page_is_a_target() -> None:
    assert call(b"[1]\n") == Outcome(AttemptOutcome.SUCCEEDED, result=b"[1]")
    lost, unreached = call(b""), call(None)
    assert (lost.error_type, lost.not_started) == ("line_closed", False)
    assert (unreached.error_type, unreached.not_started) == ("line_connect", True)
