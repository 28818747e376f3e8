"""Each element of a crontab and a CronJob, at and beyond every bound: kept, noted or refused."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.fixtures.bounds import BOUNDS, Place
from tests.strict_types import ROOT
from tidewheel.control.cli.job_files import read_jobs
from tidewheel.control.foreign import ForeignJob, read_cron_job, read_pasted
from tidewheel.errors import FieldError, InvalidInput
from tidewheel.jobs.parsing import RequestRefused, parse_request

EXAMPLE = (ROOT / "tests/control/foreign_files/cronjob.yaml").read_text("utf-8")
CRON_JOB: dict[str, Any] = next(yaml.safe_load_all(EXAMPLE))
PAGE = (ROOT / "docs/formats.md").read_text("utf-8")
VARIABLES = [*sorted({*re.findall(r"`([A-Z_]{2,})`", PAGE.partition("## A crontab")[2])}), "OTHER"]
TEXTS = [text for text in BOUNDS if isinstance(text, str) and "\n" not in text]
BLANKS = ("0\xa03", "*\u3000", "1\x85", "\u20281", "1\x1c2")  # which Python's split takes for blanks, and cron does not

CRON_JOB["metadata"]["namespace"] = "shop"
CRON_JOB["spec"] |= {"suspend": True, "startingDeadlineSeconds": 60}
POD = CRON_JOB["spec"]["jobTemplate"]["spec"]["template"]["spec"]
POD["containers"][0] |= {"args": ["--all"], "workingDir": "/srv"}

NOT_READ = {"apiVersion", "image", "imagePullPolicy", "restartPolicy", "secretKeyRef"}
NO_TARGET = "Its container is not imported: choose a target."


def nodes(node: object, path: tuple[str | int, ...] = ()) -> Iterator[Place]:
    """Yield every element of the CronJob; of lists the first."""
    if path:
        yield Place("CronJob", CRON_JOB, path)
    if isinstance(node, dict):
        for name, each in cast("dict[str, object]", node).items():
            yield from nodes(each, (*path, name))
    elif isinstance(node, list):
        yield from nodes(cast("list[object]", node)[0], (*path, 0))


PLACES = list(nodes(CRON_JOB))


def outcome(document: Mapping[str, object]) -> ForeignJob | list[FieldError]:
    try:
        return read_cron_job(document)
    except InvalidInput as refused:
        return list(refused.errors)


def accepted(found: ForeignJob) -> None:
    """Submit the job that was read: intake accepts or refuses it."""
    with suppress(RequestRefused):
        parse_request({"type": "job.submit", "job": {"key": "k", "target": "x"} | found.job})


def without(container: Any, path: tuple[str | int, ...]) -> Any:  # noqa: ANN401 - as JSON
    """Return a document without an element."""
    first, *rest = path
    if isinstance(container, list):
        listed = cast("list[object]", container)
        return [without(listed[0], (*rest,)), *listed[1:]] if rest else listed[1:]
    return {name: without(each, (*rest,)) if name == first else each for name, each in container.items()
            if rest or name != first}  # fmt: skip


def is_read(place: Place) -> bool:
    """Return False for what a job has no use for, and for names within metadata."""
    own = ".".join(map(str, place.path))
    return not NOT_READ & {*place.path} and not own.endswith("containers.0.name") and own != "metadata"


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_value_of_a_cron_job_is_read_or_noted_or_refused(place: Place) -> None:
    """A time zone, a retry limit or a suspension that was not of its type was dropped in silence."""
    dropped = outcome(without(CRON_JOB, place.path))
    for value in BOUNDS:
        found = outcome(place.holding(value))
        if isinstance(found, ForeignJob):
            accepted(found)
            if value not in (None, "", [], {}) and is_read(place) and NO_TARGET not in found.notes:
                assert found != dropped, value


@pytest.mark.parametrize("place", [place for place in PLACES if place.path[-1] != "labels"], ids=str)
def test_unknown_field_of_a_cron_job_is_noted(place: Place) -> None:
    inner: Any = CRON_JOB
    for step in place.path:
        inner = inner[step]
    if isinstance(inner, dict) and not {"metadata", "valueFrom"} & {*place.path}:
        found = outcome(place.holding({**cast("dict[str, object]", inner), "unknownField": 1}))
        assert isinstance(found, ForeignJob)
        assert "unknownField" in " ".join(found.notes)


@pytest.mark.parametrize("kind", ["bool", "int", "float", "timestamp", "null", "binary", "set", "omap", "pairs", "x"])
@pytest.mark.parametrize("text", ["x", '""', "[1]", "{a: 1}", "2026-01-01", "1:30", "9" * 5000, "aGk="])
def test_tagged_value_is_one_of_json_or_refused(tmp_path: Path, kind: str, text: str) -> None:
    """`!!bool x` ended `apply` with a traceback, and `!!set` became a payload that is no JSON."""
    path = tmp_path / "job.yaml"
    path.write_text(f"key: !!{kind} {text}\n")
    [read] = list(read_jobs(str(path)))
    assert isinstance(read.content, FieldError) or json.loads(json.dumps(read.content)) == read.content


def pasted(text: str) -> ForeignJob | None:
    """Return what a crontab becomes; None if it is refused."""
    try:
        found = read_pasted(text)
    except InvalidInput:
        return None
    accepted(found)
    return found


def strings(value: object) -> Iterator[str]:
    """Yield every text in a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:  # pyright: ignore[reportUnknownVariableType]
            yield from strings(cast("object", each))


@pytest.mark.parametrize("name", VARIABLES)
def test_variable_of_a_crontab_is_kept_or_noted(name: str) -> None:
    for text in TEXTS:
        found = pasted(f"{name}={text}\n0 3 * * * /srv/x | y")
        if found is not None and (kept := text.strip(" \t")[:64]):
            assert any(kept in str(each) for each in strings(found.job)) or name in "".join(found.notes), text


@pytest.mark.parametrize("at", range(5))
def test_field_of_a_crontab_is_kept_as_it_is(at: int) -> None:
    for text in (*TEXTS, *BLANKS):
        fields = ["0", "3", "*", "*", "*"]
        fields[at] = text
        found = pasted(f"{' '.join(fields)} /srv/x")
        if found is not None and text.strip("\ufeff") and not {*" \t@"} & {*text}:
            assert found.job["schedule"] == {"cron": [" ".join(fields)]}


def test_command_of_a_crontab_is_kept_as_it_is() -> None:
    for text in (*TEXTS, *BLANKS):
        found = pasted(f"0 3 * * * {text}")
        if found is not None and text.strip(" \t") and not {*"%\\"} & {*text}:
            target = cast("dict[str, Any]", found.job.get("target") or {"argv": ["/bin/sh", "-c", text.strip(" \t")]})
            assert found.job.get("target") or found.job["schedule"] == {"cron": [f"0 3 * * * {text}"]}
            assert target["argv"] in ([*text.split()], ["/bin/sh", "-c", text.strip(" \t")])


def test_text_at_any_bound_is_a_schedule_or_refused() -> None:
    for text in BOUNDS:
        if isinstance(text, str):
            pasted(text)
            pasted(f"kind: CronJob\nspec:\n  schedule: {text}")
