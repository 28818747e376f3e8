"""A process without memory or threads ends by one line and a code, and hears every signal."""

import ast
import json
import subprocess
import sys
from contextlib import closing

import pytest

from tests.faults.outside.proxy import Proxy
from tests.strict_types import ROOT
from tidewheel.local.stack import StackInfo
from tidewheel.process.exhausted import EXIT_CODE, is_exhausted

pytestmark = pytest.mark.process

_PRELUDE = """
import logging, os, resource, signal, sys, threading
from pathlib import Path
from tidewheel.process.logs import configure_logging
configure_logging()
def exhaust():
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    left = 2**21  # less than the stack of a thread; glibc aborts where a thread has no room for its own variables
    resource.setrlimit(resource.RLIMIT_AS, (used + left, resource.getrlimit(resource.RLIMIT_AS)[1]))
"""
_SIGNALLED = """
from tidewheel.process.service import Shutdown
Shutdown().on_signals()
exhaust()
os.kill(os.getpid(), signal.SIGTERM)
threading.Event().wait(60)
"""
_LOOPING = """
from tidewheel.process.service import Shutdown, run_loop
def step():
    threading.Thread(target=print).start()
    return 0.0
exhaust()
run_loop(Shutdown(), "a loop", step)
"""
_CONSUMING = """
from tidewheel.kafka.clients import consumer
client = consumer({"bootstrap.servers": sys.argv[1]}, group="exhausted", role="test", protocol="classic")
client.subscribe(["exhausted"])
exhaust()
print("exhausted", flush=True)
while True:
    client.poll(1.0)
"""


def started(script: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _PRELUDE + script, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def messages_until_end(process: subprocess.Popen[str]) -> list[str]:
    """Return what a process logs until it ends by itself, as one that is exhausted."""
    with process:
        try:
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == EXIT_CODE, (process.returncode, output[-2000:])
    return [json.loads(line)["message"] for line in output.splitlines()]


@pytest.mark.parametrize("script", [_SIGNALLED, _LOOPING], ids=["signal", "loop"])
def test_exhausted_process_ends_by_one_line_and_a_code(script: str) -> None:
    [line] = messages_until_end(started(script))
    assert line.startswith("out of memory or threads (can't start new thread)")


@pytest.mark.kafka
def test_kafka_client_without_threads_ends_its_process(info: StackInfo) -> None:
    """It reported that it could create no thread five times a second, and its runs came by the sweep."""
    host, port = info.kafka["bootstrap.servers"].split(",")[0].split(":")
    with closing(Proxy(int(port), seed=0)) as proxy:
        proxy.line.silent = True  # until no thread is left: the client creates one when it hears of the broker
        process = started(_CONSUMING, f"{host}:{proxy.port}")
        assert process.stdout is not None
        assert process.stdout.readline() == "exhausted\n"
        proxy.line.silent = False
        *connections, line = messages_until_end(process)
    assert all("a connection to Kafka failed" in other for other in connections), connections
    assert line.startswith("out of memory or threads (")


def test_handler_that_asks_for_too_much_is_no_exhausted_process() -> None:
    assert not is_exhausted(ValueError("no such order"))
    assert is_exhausted(MemoryError())


def test_no_row_is_taken_for_the_cause_of_a_lack_of_memory() -> None:
    named = [ROOT / "executor" / f"{name}.py" for name in ("claim", "completer", "reaper", "sweep")]
    swallowed: list[str] = []
    for path in [*ROOT.glob("scheduler/*.py"), *named]:
        for block in ast.walk(ast.parse(path.read_text())):
            handlers = block.handlers if isinstance(block, ast.Try) else []
            kinds = " ".join(ast.unparse(one.type) for one in handlers if one.type)
            raises = any(isinstance(each, ast.Raise) for one in handlers[-1:] for each in ast.walk(one))
            if kinds.endswith("Exception") and "MemoryError" not in kinds and not raises:
                swallowed.append(f"{path.name}:{handlers[-1].lineno}")
    assert swallowed == []
