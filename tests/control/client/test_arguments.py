"""Arguments of the client: each of a wrong type is refused by its name, as one error."""

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Unpack, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest

from tests.fixtures.bounds import MISTYPED
from tests.fixtures.database import Database
from tidewheel.control.client.client import Client
from tidewheel.errors import InvalidInput, Refused, UnknownJob


def methods(client: Client) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield every public method of the client and of its parts."""
    parts = [("", client), *((f"{name}.", part) for name, part in vars(client).items() if not name.startswith("_"))]
    for place, part in parts:
        for name, method in inspect.getmembers(part, inspect.ismethod):
            if not name.startswith("_"):
                yield f"{place}{name}", method


_VALUES: Mapping[str, object] = {
    "key": "job", "runs": [{"ref": "a", "key": "job"}], "attempt": 1, "version": 1, "a": 1, "b": 1, "number": 1,
    "days": 1, "name": "acme",
    "request_id": "r", "patch": {},
    "job": {"key": "job", "schedule": "manual", "target": "x"},
}  # fmt: skip


def test_every_id_and_every_mapping_of_a_wrong_type_is_refused_by_name(database: Database) -> None:
    database.submit()
    tried = 0
    for name, method in methods(database.client):
        signature, hints = inspect.signature(method), get_type_hints(method)
        required = [
            each for each in signature.parameters.values()
            if each.default is inspect.Parameter.empty and each.kind is each.POSITIONAL_OR_KEYWORD
        ]  # fmt: skip
        for wrong in signature.parameters:
            kinds = (hints.get(wrong), *get_args(hints.get(wrong)))
            is_job = wrong in {"job", "patch"}
            if UUID not in kinds and not is_job:
                continue
            given: dict[str, Any] = {each.name: _VALUES.get(each.name, UUID(int=1)) for each in required}
            for text in ("abc", *MISTYPED[:2]):
                with pytest.raises(Refused) as caught:
                    method(**given | {wrong: text})
                assert [error.path for error in caught.value.errors] == [wrong], (name, caught.value)
            tried += 1
    assert tried > 20


def accepted(method: Callable[..., object]) -> dict[str, set[object]]:
    """Return the parameters of a method with the types that each accepts, those of `Unpack` one by one."""
    hints = get_type_hints(method)
    found = {name: hints.get(name) for name in inspect.signature(method).parameters}
    for unpacked in [hint for hint in found.values() if get_origin(hint) is Unpack]:
        found |= get_type_hints(get_args(unpacked)[0])
    return {
        name: {hint, get_origin(hint), *get_args(hint), *map(get_origin, get_args(hint))}
        for name, hint in found.items()
    }


def required(method: Callable[..., object]) -> dict[str, Any]:
    """Return a value for each parameter without a default."""
    parameters = inspect.signature(method).parameters.values()
    names = [each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    return {name: _VALUES.get(name, UUID(int=1)) for name in names}


def numbers(method: Callable[..., object]) -> Iterator[str]:
    """Yield the parameters of a method that are whole numbers."""
    for name, kinds in accepted(method).items():
        if int in kinds and float not in kinds:
            yield name


def test_every_whole_number_beyond_its_column_is_refused(database: Database) -> None:
    database.submit()
    tried = 0
    for _, method in methods(database.client):
        for number in numbers(method):
            for huge in (2**31, 2**63, 10**30):
                with suppress(Refused):  # any other error, such as psycopg's, fails the test
                    method(**required(method) | {number: huge})
                tried += 1
    assert tried > 50


def test_every_whole_number_refuses_other_numbers(database: Database) -> None:
    database.submit()
    tried = 0
    for name, method in methods(database.client):
        for number in numbers(method):
            for wrong in (2.0, 1.5, True, "2"):
                with pytest.raises(Refused) as caught:
                    method(**required(method) | {number: wrong})
                paths = {error.path.rpartition(".")[2] for error in caught.value.errors}
                assert number in paths, (name, wrong)
                tried += 1
    assert tried > 50


def test_every_json_value_refuses_a_name_that_is_not_text(database: Database) -> None:
    """In JSON, 1 and "1" are one name: one of the two values would be lost."""
    database.submit()
    lossy = {1: "a", "1": "b"}
    tried = 0
    for name, method in methods(database.client):
        for wrong, kinds in accepted(method).items():
            if kinds & {object, dict, Mapping, Sequence} and wrong not in {"queues", "scopes"}:
                given = [{"ref": "a", "key": "job", "payload": lossy}] if wrong == "runs" else lossy
                with pytest.raises(Refused) as caught:
                    method(**required(method) | {wrong: given})
                paths = [error.path for error in caught.value.errors]
                assert all(path == wrong or path.startswith(f"{wrong}.") for path in paths), (name, paths)
                tried += 1
    assert tried > 20


def test_timeout_that_is_no_duration_is_refused(client: Client) -> None:
    some = UUID(int=1)
    for timeout in (float("nan"), float("inf"), -1, True):
        for wait in (client.runs.wait, client.works.wait, client.batches.wait):
            with pytest.raises(InvalidInput) as caught:
                wait(some, timeout=timeout)
            assert [error.path for error in caught.value.errors] == ["timeout"], timeout


def test_id_may_be_its_text(database: Database, client: Client) -> None:
    database.submit()
    run_id = database.trigger()
    assert client.runs.get(str(run_id)).run_id == run_id  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


_ACTS: tuple[Callable[[Client], object], ...] = (
    lambda client: client.submit({"key": "a", "schedule": "manual"}),
    lambda client: client.submit("x"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    lambda client: client.trigger("job", delay="soon"),
    lambda client: client.preview({"key": "a", "schedule": "manual"}),
    lambda client: client.patch("job", {"window": "x"}),
    lambda client: client.runs.cancel_matching(queue="A B"),
    lambda client: client.runs.wait("abc"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
)


def test_refusal_is_one_error_of_a_public_class(database: Database, client: Client) -> None:
    """A traceback shows one error, without those of the models beneath it."""
    database.submit()
    for number, act in enumerate(_ACTS):
        with pytest.raises(Refused) as caught:
            act(client)
        text = "".join(traceback.format_exception(caught.value))
        assert text.count("Traceback (most recent call last)") == 1, (number, text)
        assert type(caught.value).__module__ == "tidewheel.errors", (number, text)


def test_empty_patch_makes_no_version(database: Database, client: Client) -> None:
    database.submit()
    before = client.jobs.get("job").summary.version
    reply = client.patch("job", {})
    assert (reply.unchanged, client.jobs.get("job").summary.version) == (True, before)


def test_jobs_are_listed_and_read(database: Database, client: Client) -> None:
    database.submit("a", labels={"team": "billing"}, retry={"jitter": "10%"}, window="30d")
    database.submit("b")
    assert [job.key for job in client.jobs.list().jobs] == ["a", "b"]
    assert [job.key for job in client.jobs.list(labels={"team": "billing"}).jobs] == ["a"]
    first = client.jobs.list(limit=1)
    assert [job.key for job in client.jobs.list(after=first.next_cursor or "").jobs] == ["b"]
    found = client.jobs.get("a")
    assert (found.job["window"], found.job["retry"]) == ("30d", {"jitter": "10%"})
    assert client.submit(found.job).unchanged
    with pytest.raises(UnknownJob):
        client.jobs.get("c")
