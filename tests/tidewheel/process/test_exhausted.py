"""A process without memory or threads ends by one line and a code, and hears every signal."""

import json
import subprocess
import sys

import pytest

from tidewheel.local.stack import StackInfo
from tidewheel.process.exhausted import EXIT_CODE, is_exhausted

pytestmark = pytest.mark.process

_PRELUDE = """
import logging, os, resource, signal, sys, threading
from pathlib import Path
from tidewheel.process.json_logging import configure_logging
configure_logging()
def exhaust():
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used, resource.getrlimit(resource.RLIMIT_AS)[1]))
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
while True:
    client.poll(1.0)
"""


def ended(script: str, *arguments: str) -> list[str]:
    """Run a script that exhausts its process; return the messages it logs until it ends by itself."""
    command = [sys.executable, "-c", _PRELUDE + script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == EXIT_CODE, (done.returncode, done.stderr[-2000:])
    return [json.loads(line)["message"] for line in (done.stdout + done.stderr).splitlines()]


@pytest.mark.parametrize("script", [_SIGNALLED, _LOOPING], ids=["signal", "loop"])
def test_exhausted_process_ends_by_one_line_and_a_code(script: str) -> None:
    [line] = ended(script)
    assert line.startswith("no memory or no thread is left (can't start new thread)")


@pytest.mark.kafka
def test_kafka_client_without_threads_ends_its_process(info: StackInfo) -> None:
    """It reported that it could create no thread five times a second, and its runs came by the sweep."""
    other_name = info.kafka["bootstrap.servers"].replace("127.0.0.1", "localhost")
    [line] = ended(_CONSUMING, other_name)
    assert line.startswith("no memory or no thread is left (")


def test_handler_that_asks_for_too_much_is_no_exhausted_process() -> None:
    assert not is_exhausted(ValueError("no such order"))
    assert is_exhausted(MemoryError())
