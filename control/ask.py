"""Find what an id or a key names: a run, a dead letter or a job.

REST and the console use it. An answer takes a fixed number of indexed reads.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from tidewheel.control.reads.job_position import key_of_job
from tidewheel.errors import UnknownDeadLetter, UnknownJob, UnknownRun
from tidewheel.nouns.dead_letters.operations import show_dead_letter
from tidewheel.nouns.runs.detail import show_run
from tidewheel.nouns.runs.model import RunSummary
from tidewheel.nouns.runs.reads import LOOKED_AT, find_short_id
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_FIND_KEYS_FROM = Statements("tidewheel.control")["find_keys_from"]

MAX_ALTERNATIVES = 8
"""The other meanings that an answer has at most."""

_KEYS = 100  # on each side of a text that are compared with it: all of a small installation
_DEAD_LETTER = re.compile(r"#(\d{1,18})", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_SHORT_ID = re.compile(r"([0-9a-f]{8})(?:…|\.\.\.)([0-9a-f]{4})")


class Kind(StrEnum):
    """Kind of a meaning."""

    RUN = "run"
    DEAD_LETTER = "dead_letter"
    JOB = "job"
    MATCHES = "matches"
    """Keys that begin with the text or contain it, or runs of a short id: the alternatives."""
    NOTHING = "nothing"
    """The text means nothing here."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """A meaning of a text: its kind, its id or key, and a line about it."""

    kind: Kind
    target: str
    words: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The first meaning of a text, and up to eight others. Without a meaning, `words` has what was tried."""

    question: str
    kind: Kind
    target: str | None
    words: str
    alternatives: tuple[Meaning, ...] = ()


def ask(connection: Conn, tenant: str, text: str) -> Answer:
    """Find what a text names. The caller's transaction reads one snapshot."""
    text = text.strip()
    found: Meaning | None = None
    if letter := _DEAD_LETTER.fullmatch(text):
        found = _dead_letter(connection, tenant, int(letter[1]))
    elif _UUID.fullmatch(text):
        found = _by_id(connection, tenant, UUID(text))
    elif short := _SHORT_ID.fullmatch(text.lower()):
        return _by_short_id(connection, tenant, text, *short.groups())
    return Answer(text, found.kind, found.target, found.words) if found else _by_key(connection, tenant, text)


def _dead_letter(connection: Conn, tenant: str, number: int) -> Meaning | None:
    try:
        letter = show_dead_letter(connection, tenant, number)
    except UnknownDeadLetter:
        return None
    about = letter.key or f"{letter.topic} {letter.partition} @ {letter.offset}"
    return Meaning(Kind.DEAD_LETTER, str(letter.id), f"{about}: {letter.error_type or letter.reason}")


def _by_id(connection: Conn, tenant: str, found: UUID) -> Meaning | None:
    try:
        return _of_run(show_run(connection, tenant, found).summary)
    except UnknownRun:
        try:
            return Meaning(Kind.JOB, key_of_job(connection, tenant, found), "the job of this id")
        except UnknownJob:
            return None


def _by_short_id(connection: Conn, tenant: str, text: str, begin: str, end: str) -> Answer:
    """Return the run of a short id, or all runs that have it, else the key."""
    runs, is_cut = find_short_id(connection, tenant, begin, end)
    if is_cut:
        words = f"more than {LOOKED_AT:,} runs have ids that begin with {begin}: open the run, and copy its whole id"
        return Answer(text, Kind.NOTHING, None, words)
    found = [_of_run(run) for run in runs[:MAX_ALTERNATIVES]]
    if len(found) == 1:
        return Answer(text, Kind.RUN, found[0].target, found[0].words)
    if found:
        return Answer(text, Kind.MATCHES, None, f"runs with the id {text}", tuple(found))
    return _by_key(connection, tenant, text)


def _of_run(run: RunSummary) -> Meaning:
    return Meaning(Kind.RUN, str(run.run_id), f"{run.key}: {run.status.replace('_', ' ')}")


def _by_key(connection: Conn, tenant: str, text: str) -> Answer:
    """Return the job of a key, else the keys that begin with it or contain it.

    Keys that contain it are found among the nearest ones: no index has them.
    """
    columns = {"tenant": tenant, "text": text, "limit": _KEYS}
    keys = [str(key) for (key,) in connection.execute(_FIND_KEYS_FROM, columns)]
    longer = sorted((not key.startswith(text), key) for key in keys if text in key and key != text)
    others = tuple(Meaning(Kind.JOB, key, "a job") for _, key in longer[:MAX_ALTERNATIVES])
    if text in keys:
        return Answer(text, Kind.JOB, text, "a job", others)
    if others:
        return Answer(text, Kind.MATCHES, None, f"contains {text}", others)
    return Answer(text, Kind.NOTHING, None, f"no job, run or dead letter is {text!r}")
