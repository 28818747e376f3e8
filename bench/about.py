"""Describe a measurement: the machine, the interpreter, the versions of all parts, and settings."""

import platform
import subprocess
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from shutil import which

import psutil

from tidewheel.bench.environment import Server
from tidewheel.bench.interpreter import read_build
from tidewheel.local.parts import database_addresses
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.settings.services import RelaySettings, SchedulerSettings

_LIBRARIES = ("tidewheel", "psycopg", "confluent-kafka", "fastavro", "pydantic", "uvloop")
_SHOWN_SETTINGS = (SchedulerSettings, RelaySettings, ExecutorSettings)
_HIDDEN = frozenset({"database_url", "kafka_bootstrap", "webhook_secrets", "topic_prefix"})


def describe(server: Server) -> dict[str, object]:
    """Machine, interpreter, versions and settings, as keys of the document."""
    return {
        "machine": machine(),
        "interpreter": asdict(read_build()),
        "versions": versions(server),
        "settings": settings(server),
    }


def machine() -> dict[str, object]:
    """Describe this machine."""
    return {
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_before": psutil.getloadavg()[0],
    }


def versions(server: Server) -> dict[str, str]:
    """Return the versions of all parts."""
    with server.connect_admin() as connection:
        row = connection.execute("SHOW server_version").fetchone()
    assert row is not None
    libraries = {name: version(name) for name in _LIBRARIES}
    return {
        "build": _build(),
        "python": platform.python_version(),
        "postgresql": str(row[0]),
        "kafka": server.kafka_version(),
        **libraries,
    }


def _build() -> str:
    """The commit of the clone that this is run from, or the release."""
    root = Path(__file__).resolve().parents[1]
    if (root / ".git").exists() and (git := which("git")):
        command = [git, "-C", str(root), "describe", "--always", "--dirty"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    return version("tidewheel")


def settings(server: Server) -> dict[str, object]:
    """Return PostgreSQL's settings of durability and all changed settings of Tidewheel."""
    names = (
        "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "wal_compression",
        "checkpoint_timeout", "autovacuum_naptime",
    )  # fmt: skip
    with server.connect_admin() as connection:
        rows = connection.execute("SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name", [list(names)])
        shown: dict[str, object] = {f"postgresql.{name}": value for name, value in rows.fetchall()}
    for model in _SHOWN_SETTINGS:
        loaded = model.load()
        for name in sorted(loaded.model_fields_set - _HIDDEN):
            shown[f"tidewheel.{name}"] = str(getattr(loaded, name))
    return {**shown, "database": database_addresses(server.info.database_url), "replication": server.info.replication}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
