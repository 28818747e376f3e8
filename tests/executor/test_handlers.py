"""`@tidewheel.handler`: what is registered under which name, and what is refused with the reason."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, cast

import pytest
from pydantic import BaseModel, Field

import tidewheel
from tidewheel.errors import SettingsError
from tidewheel.executor.handlers import import_handlers, registered


class Mail(BaseModel):
    to: str


def plain_function(name: str = "plain", annotation: object = object) -> Callable[[tidewheel.Context, Any], None]:
    def plain(context: tidewheel.Context, payload: object) -> None:
        del context, payload

    plain.__annotations__["payload"], plain.__name__ = annotation, name
    plain.__qualname__ = name
    return plain


def test_function_is_registered_by_name_and_unchanged() -> None:
    @tidewheel.handler("registering.plain")
    def plain(context: tidewheel.Context, payload: object) -> object:
        del context
        return payload

    found = registered()["registering.plain"]
    assert (found.function, found.is_async, found.payload) == (plain, False, None)


def test_coroutine_function_runs_on_the_loop_with_a_model_payload() -> None:
    @tidewheel.handler("registering.model")
    async def mail(context: tidewheel.Context, payload: Mail) -> None:
        del context, payload

    found = registered()["registering.model"]
    assert (found.function, found.is_async) == (mail, True)
    assert found.payload is not None
    assert found.payload.validate_json(b'{"to": "ann"}') == Mail(to="ann")


def test_duplicate_handler_name_is_refused() -> None:
    first, second = plain_function("first"), plain_function("second")
    tidewheel.handler("registering.taken")(first)
    with pytest.raises(
        ValueError,
        match=r"'registering\.taken'.*first \(.*, line \d+\) and .*second \(.*, line \d+\); rename",
    ):
        tidewheel.handler("registering.taken")(second)
    assert registered()["registering.taken"].function is first


def test_same_handler_name_in_another_module_is_refused() -> None:
    first, another = plain_function("taken"), plain_function("taken")
    tidewheel.handler("registering.same")(first)
    tidewheel.handler("registering.same")(first)

    another.__module__ = "elsewhere"
    with pytest.raises(ValueError, match=r"'registering\.same'.*taken .* and elsewhere\.taken .*; rename one"):
        tidewheel.handler("registering.same")(another)


def test_a_decorator_without_a_name_is_refused() -> None:
    with pytest.raises(TypeError, match=r'write @tidewheel\.handler\("name"\)'):
        tidewheel.handler(cast("str", plain_function()))


def test_function_with_other_parameters_is_refused_with_a_remedy() -> None:
    def wrong(payload: object) -> None:
        del payload

    with pytest.raises(ValueError, match=r"must take \(context, payload\), not \(payload\)"):
        tidewheel.handler("registering.wrong")(wrong)


def test_wrong_function_is_named_by_its_own_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "shop_wrong.py").write_text('import tidewheel\n\n@tidewheel.handler("one")\ndef a(p): pass\n')
    with pytest.raises(SettingsError, match=r"handler 'one': a must take .*shop_wrong\.py, line 3\)"):
        import_handlers("shop_wrong")
    with pytest.raises(SettingsError, match="it is neither in this folder"):
        import_handlers("shop_gone")


@pytest.mark.parametrize("modules", ["no_such_module", "json, no.such.module"])
def test_unimportable_module_is_named(modules: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"handlers: module 'no.*cannot be imported: Module.*PYTHONPATH=\."):
        import_handlers(modules)


@pytest.mark.parametrize("modules", [None, "", " , ", "json, datetime"])
def test_names_are_separated_by_commas(modules: str | None) -> None:
    import_handlers(modules)


def test_documented_names_exist() -> None:
    for name in tidewheel.__all__:
        assert getattr(tidewheel, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = tidewheel.nothing  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


STARTED = """
import json, sys
from tidewheel.control.cli.main import main
from tidewheel.executor.handlers import registered
sys.argv = ["tidewheel", "executor", "--fail-fast", *sys.argv[1:]]
try:
    main()
except SystemExit:
    print(json.dumps([each.function.__module__ for each in registered().values()]))
"""


@pytest.mark.process
def test_executor_registers_the_named_handlers_only() -> None:
    nowhere = {"TIDEWHEEL_DATABASE_URL": "postgresql://127.0.0.1:1/none", "TIDEWHEEL_KAFKA_BOOTSTRAP": "127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-c", STARTED, "--handlers", "tests.executor.parent_handlers", "--handlers", "json"],
        env=os.environ | nowhere,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the database does not answer" in done.stderr
    assert set(json.loads(done.stdout)) == {"tests.executor.parent_handlers"}


@pytest.mark.parametrize(
    ("annotation", "fits", "read", "wrong"),
    [
        (dict[str, float], b'{"a": 1}', {"a": 1.0}, b'{"a": "much"}'),
        (list[int], b"[1, 2]", [1, 2], b'{"a": 1}'),
        (Mail | None, b"null", None, b'{"from": "ann"}'),
        (Annotated[int, Field(ge=1)], b"7", 7, b"0"),
        (datetime, b'"2026-11-27T05:00:00Z"', datetime(2026, 11, 27, 5, tzinfo=UTC), b'"soon"'),
    ],
)
def test_payload_of_any_annotation_is_validated(annotation: object, fits: bytes, read: object, wrong: bytes) -> None:
    name = f"validated {annotation}"[:255]
    tidewheel.handler(name)(plain_function(annotation=annotation))
    found = registered()[name]
    assert found.read_payload(fits, "application/json") == read
    with pytest.raises(ValueError, match="validation error"):
        found.read_payload(wrong, "application/json")


@pytest.mark.parametrize("annotation", [object, Any, bytes, socket.socket])
def test_payload_of_an_annotation_that_says_nothing_is_passed_as_it_is(annotation: object) -> None:
    name = f"as it is {annotation}"
    tidewheel.handler(name)(plain_function(annotation=annotation))
    assert registered()[name].read_payload(b'{"a": [1]}', "application/json") == {"a": [1]}


Items = Sequence[tidewheel.Item[Mail]]
CHUNK = tidewheel.Chunk(most=2)


def test_payload_of_a_chunk_is_that_of_its_items() -> None:
    for name, hint in (
        ("model", Items),
        ("list", list[tidewheel.Item[Mail]]),
        ("any", Sequence[tidewheel.Item[object]]),
    ):

        async def mail(items: object) -> None:
            del items

        mail.__annotations__["items"], mail.__qualname__ = hint, name
        tidewheel.handler(f"registering.chunk-{name}", chunk=CHUNK)(mail)
        found = registered()[f"registering.chunk-{name}"]
        assert (found.payload is None) == (name == "any"), name


@pytest.mark.parametrize(
    ("most", "wait", "field"),
    [
        (0, "1s", "most"),
        (10_001, "1s", "most"),
        ("5", "1s", "most"),
        (True, "1s", "most"),
        (1, "11s", "wait"),
        (1, -1, "wait"),
        (1, "soon", "wait"),
    ],
)
def test_chunk_out_of_its_bounds_is_refused(most: Any, wait: Any, field: str) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=rf"^Chunk\.{field}: .*; write"):
        tidewheel.Chunk(most, wait)


def one_by_one(items: Items) -> Iterator[int]:
    yield len(items)


async def one_by_one_async(items: Items) -> AsyncIterator[int]:
    yield len(items)


def single(items: Mail) -> None:
    del items


@pytest.mark.parametrize(
    ("function", "isolation", "message"),
    [
        (one_by_one, None, "one_by_one, which yields; call item.succeed or item.fail for each item"),
        (one_by_one_async, None, "one_by_one_async, which yields; call item.succeed or item.fail for each item"),
        (single, None, "annotate items as Sequence[tidewheel.Item[…]], not as <class"),
        (single, "process", "chunk does not suit isolation='process'; leave one of them out"),
        (plain_function("two"), None, "two must take (items), not (context, payload)"),
    ],
)
def test_function_that_no_chunk_suits_is_refused(function: Any, isolation: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=rf"handler 'registering\.no-chunk': .*{re.escape(message)}"):
        tidewheel.handler("registering.no-chunk", isolation=isolation, chunk=CHUNK)(function)
    assert "registering.no-chunk" not in registered()


def test_number_in_place_of_a_chunk_is_refused() -> None:
    with pytest.raises(TypeError, match=r"chunk=500 is no Chunk; write chunk=tidewheel\.Chunk"):
        tidewheel.handler("registering.no-chunk", chunk=cast("tidewheel.Chunk", 500))(single)
