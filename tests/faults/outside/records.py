"""The logs of one history, as JSON lines: what was recorded outside of Tidewheel.

All instants are whole microseconds since 1970 by the clock of the machine, which the database shares.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import time_ns  # its own: a row of the matrix replaces that of the module in a service
from typing import Any, TypeVar

SECOND = 1_000_000

R = TypeVar("R")


def now_us() -> int:
    """The machine's clock."""
    return time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Operation:
    """One request: `client.jsonl`, folded."""

    id: str
    request: Mapping[str, Any]  # the document without the request_id
    invoked: int  # when the client produced it
    answered: int | None = None  # when the client had the reply; None while its outcome is unknown
    accepted: bool = True  # False if it was rejected
    reply: Mapping[str, Any] = field(default_factory=dict[str, Any])
    place: tuple[str, int, int] | None = None  # topic, partition and offset that the broker acknowledged

    @property
    def type(self) -> str:
        """Its type, such as `job.submit`."""
        return str(self.request["type"])

    @property
    def key(self) -> str:
        """The job that it concerns."""
        job = self.request.get("job", self.request)
        return str(job.get("key", ""))


@dataclass(frozen=True, slots=True)
class Effect:
    """One call of a target: `effects.jsonl`, folded."""

    run_id: str  # as the call named it
    attempt: int
    job_key: str
    scheduled_at: int
    received: int  # when the call arrived whole
    answered: int | None = None  # when the answer was about to be written; None if it was cut, or never written
    status: int = 0  # the answer's status; 0 if it was cut
    genuine: bool = True  # False if signature or body are not those that were expected
    pid: int | None = None  # the process that called, where the target is in it
    token: str = ""  # of the attempt, where it is completed from outside

    @property
    def succeeded(self) -> bool:
        """True if the target has answered that it succeeded."""
        return self.answered is not None and 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a topic: `topics.jsonl`."""

    topic: str  # without the prefix
    partition: int
    offset: int
    at: int  # the broker's timestamp
    key: str
    digest: str  # of key, value and headers
    kind: str  # name of the value's schema; empty if it has none
    value: Mapping[str, Any]  # the decoded value; bytes as text


@dataclass(frozen=True, slots=True)
class Fault:
    """One injection: `faults.jsonl`, folded."""

    row: str  # its row of the matrix
    injected: int  # when it began
    healed: int  # when its cause was gone
    recovered: int | None = None  # when everything due had run again; None if it never was
    detail: Mapping[str, Any] = field(default_factory=dict[str, Any])  # the victims, the times to stop


@dataclass(frozen=True, slots=True)
class Tables:
    """The content of the database after quiet: `dump.jsonl`. Only H8 to H10 read it."""

    states: Mapping[str, str]
    left: Mapping[str, int]  # rows of tables that must be empty
    lag: int = 0  # messages that no executor has taken


@dataclass(frozen=True, slots=True, repr=False)
class History:
    """Everything that was recorded of one campaign."""

    operations: tuple[Operation, ...]  # in the order of their invocation
    effects: tuple[Effect, ...]  # in the order of their arrival
    messages: tuple[Message, ...]  # as the first reading found them
    again: tuple[Message, ...]
    faults: tuple[Fault, ...]  # in the order of their injection
    tables: Tables
    begun: int  # from when on instants are judged
    ended: int
    quiet: int | None  # when nothing was left to do; None if there always was something
    lease: int
    misfire_after: int

    def __repr__(self) -> str:
        return f"History({len(self.operations)} requests, {len(self.effects)} effects, {len(self.faults)} faults)"


class Log:
    """A file to which whole lines are appended; several processes may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def append(self, line: Mapping[str, Any]) -> None:
        """Append one line by one write."""
        os.write(self._file, json.dumps(line, default=str).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Tail:
    """Reads the whole lines that were appended to a log since the last look."""

    def __init__(self, path: Path) -> None:
        self._path, self._place = path, 0

    def read(self) -> list[dict[str, Any]]:
        """Return the new lines."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._place)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._place += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a log."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def fold_operations(lines: Iterable[Mapping[str, Any]]) -> tuple[Operation, ...]:
    """Fold invoke, place, ok, fail and info into operations.

    An operation with `info` alone, or with nothing, has an unknown outcome.
    """
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        held = found.setdefault(line["id"], {"id": line["id"]})
        match line["kind"]:
            case "invoke":
                held.update(request=line["request"], invoked=line["at"])
            case "placed":
                held["place"] = (line["topic"], line["partition"], line["offset"])
            case "ok" | "fail":
                if "answered" not in held:
                    held.update(answered=line["at"], accepted=line["kind"] == "ok", reply=line["reply"])
            case _:
                pass
    return tuple(Operation(**held) for held in sorted(found.values(), key=lambda held: held["invoked"]))


def fold_effects(lines: Iterable[Mapping[str, Any]]) -> tuple[Effect, ...]:
    """Fold calls and their answers into effects."""
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line["kind"] == "received":
            found[line["call"]] = {name: value for name, value in line.items() if name not in ("kind", "call")}
        elif line["call"] in found:
            found[line["call"]].update(answered=line["answered"], status=line["status"])
    return tuple(Effect(**held) for held in sorted(found.values(), key=lambda held: held["received"]))


def fold_faults(lines: Iterable[Mapping[str, Any]]) -> tuple[Fault, ...]:
    """Fold inject, heal and recovered into faults."""
    found: dict[int, dict[str, Any]] = {}
    for line in lines:
        held = found.setdefault(line["number"], {"row": line["row"], "detail": {}})
        held[line["kind"]] = line["at"]
        held["detail"].update(line.get("detail", {}))
    return tuple(Fault(**held) for _, held in sorted(found.items()) if "injected" in held and "healed" in held)


def write_messages(path: Path, messages: Iterable[Message]) -> None:
    """Write one reading of the topics."""
    path.write_text("".join(json.dumps(asdict(message), default=str) + "\n" for message in messages))
