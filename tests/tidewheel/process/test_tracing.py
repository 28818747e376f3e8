"""Traces cost nothing while they are off, and say what they need where they cannot be on."""

import subprocess
import sys

import pytest

from tidewheel.errors import SettingsError
from tidewheel.process import tracing


@pytest.mark.process
def test_services_import_nothing_of_opentelemetry_while_traces_are_off() -> None:
    services = ["control.services", "intake.service", "scheduler.loop", "relay.loop", "executor.loop"]
    imports = ";".join(f"import tidewheel.{name}" for name in services)
    found = "sorted(name for name in sys.modules if name.startswith('opentelemetry'))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys;{imports};print({found})"], capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == "[]"


def test_missing_packages_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def finds_nothing(_name: str) -> None:
        return None

    monkeypatch.setattr(tracing, "find_spec", finds_nothing)
    with pytest.raises(SettingsError, match=r"tidewheel\[telemetry\]"):
        tracing.start("relay")
