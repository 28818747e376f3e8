"""The words of a page that was not found: its thing, and the age of that beside what is kept."""

import re
from typing import NamedTuple
from urllib.parse import unquote
from uuid import UUID

from tidewheel.ids import instant_of
from tidewheel.jobs.values import format_timestamp

_THING = re.compile(r"/(jobs|runs|calendars|dead-letters|workflows|bulk/[a-z]+|admin/tenants|admin/keys)/([^/]+)")
_NOUNS = {"jobs": "job", "runs": "run", "calendars": "calendar", "dead-letters": "dead letter", "workflows": "workflow",
          "admin/tenants": "tenant", "admin/keys": "key"}  # fmt: skip
_KEPT = "By default, finished runs are kept for 90 days. An archive may have older runs."
_VERSION = 8  # of the ids of runs


class Lost(NamedTuple):
    """The thing that an address names.

    Args:
        words: Whether it may be older than what is kept; empty where nothing is known.
    """

    noun: str
    name: str
    words: str


def lost(path: str) -> Lost | None:
    """Return what an address names; None if it names no thing.

    >>> lost("/jobs/a%2Fb/versions")
    Lost(noun='job', name='a/b', words='')
    >>> lost("/runs/019d3a1c-7f00-8123-8456-789abcdef012").words.partition(". ")[0]
    'Its time is 2026-03-29T15:00:39.296000Z'
    >>> lost("/nowhere")
    """
    found = _THING.match(path)
    if found is None:
        return None
    noun, name = _NOUNS.get(found[1], "request"), unquote(found[2])
    words = _of_run(name) if noun in {"run", "workflow"} else ""
    return Lost(noun, name.removeprefix("id:"), words)


def _of_run(name: str) -> str:
    try:
        run_id = UUID(name)
        at = instant_of(run_id)
    except (ValueError, OverflowError):
        return ""
    return f"Its time is {format_timestamp(at)}. {_KEPT}" if run_id.version == _VERSION else _KEPT
