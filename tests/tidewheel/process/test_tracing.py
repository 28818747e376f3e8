"""Traces cost nothing while they are off, and say what they need where they cannot be on."""

import os
import socket
import subprocess
import sys

import pytest


@pytest.mark.landing
@pytest.mark.process
def test_services_import_nothing_of_opentelemetry_while_traces_are_off() -> None:
    services = ["control.services", "intake.service", "scheduler.loop", "relay.loop", "executor.loop"]
    imports = ";".join(f"import tidewheel.{name}" for name in services)
    found = "sorted(name for name in sys.modules if name.startswith('opentelemetry'))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys;{imports};print({found})"], capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == "[]"


@pytest.mark.landing
@pytest.mark.process
def test_collector_that_is_silent_does_not_delay_the_end() -> None:
    """The SDK alone would try for 19 s."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        lines = (
            "import time, uuid, os, logging",
            "from tidewheel.process import tracing",
            "tracing.start('relay')",
            "tracing.spans.sent(uuid.uuid4(), None, 'topic', time.time_ns())",
            "began = time.monotonic()",
            "tracing.stop()",
            "print(time.monotonic() - began < 10)",
        )
        known = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        command = [sys.executable, "-c", "\n".join(lines)]
        done = subprocess.run(command, capture_output=True, env=known, timeout=60, check=True)
    assert done.stdout == b"True\n"
