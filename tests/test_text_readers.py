"""No text from outside reaches Python's own readers before a grammar has accepted it.

`float` reads `inf`, `1e9` and `1_000`; `int` reads `1_000` and the digits of any script; `fromisoformat` reads weeks,
and in newer Pythons hour 24; `parsedate_to_datetime` reads nearly any words. So a call of one of these is in a
function that calls `fullmatch` or `isdecimal`, or its file is listed here with what has checked the text.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.strict_types import LINKED, ROOT
from tests.tidewheel.postgres.test_statements import real_files

FOLDERS = ("tidewheel", *LINKED)
OUTSIDE = tuple(
    f"{folder}/"
    for folder in (
        "control/api", "control/console", "control/cli", "executor/runners", "intake", "tidewheel/jobs",
        "tidewheel/schedules", "tidewheel/settings",
    )
)  # fmt: skip
"""Where text of clients, files and other programs is read: there `int` counts as well."""

_READERS = {"float", "Decimal", "Fraction", "fromisoformat", "strptime", "parsedate_to_datetime", "parsedate"}
_GRAMMARS = {"fullmatch", "isdecimal"}

STORED = {
    "control/words.py": "a stored schedule, and text that the function itself has formatted",
    "control/explain/facts.py": "the name of a partition",
    "control/occurrence_audit/archived_days.py": "the name of a folder that the archive made",
    "control/occurrence_audit/audit.py": "a stored calendar",
    "control/occurrence_audit/result.py": "a header that the relay wrote",
    "control/restore/history.py": "events that services published",
    "control/restore/procedure.py": "the state of a restore, which it stored itself",
    "control/supervise/process.py": "log lines of our own services",
    "executor/isolation/protocol.py": "messages of the worker process, which the executor wrote",
    "schemas/interop.py": "a whole number of JSON, within 64 bits",
    "schemas/primitives.py": "eight bytes of Avro",
    "tidewheel/postgres/partitions.py": "the name of a partition",
    "tidewheel/process/metrics.py": "bounds of histograms, in the code",
    "tidewheel/schedules/decide.py": "the canonical text of a stored timer",
    "tidewheel/schedules/decision.py": "the canonical text of a stored timer",
    "tidewheel/schedules/schedule.py": "a stored schedule; jobs/values.py has read a submitted one",
    "tidewheel/testing/stack.py": "the argument of a user's test",
    "tidewheel/transitions/finished.py": "a number of a stored definition",
}
INTEGERS = {
    "control/api/request_input.py": "Content-Length, of which the server refuses all but digits",
    "control/api/app.py": "the port of a socket",
    "executor/runners/aws.py": "seconds that the executor has computed",
    "intake/next_version.py": "a number of a stored schedule",
    "tidewheel/jobs/http_values.py": "an address that ipaddress has read",
    "tidewheel/jobs/strict_json.py": "digits that the JSON reader has matched",
    "tidewheel/schedules/cron_parser.py": "an element that `cron_syntax` has accepted",
    "tidewheel/schedules/cron_syntax.py": "a word of an expression: its pattern has ASCII digits only",
    "tidewheel/schedules/describe.py": "an element that the parser has accepted",
    "tidewheel/schedules/cron_fields.py": "a day that the pattern has matched",
    "tidewheel/schedules/zones.py": "the footer of a zone's file, from the package tzdata",
}


def calls(path: Path, readers: set[str]) -> Iterator[int]:
    """Yield the line of each call of a reader with text, in a function that has no grammar."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text if any(f"{reader}(" in text for reader in readers) else "")
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            own = list(_within(scope))
            named = {_name(node) for node in own}
            if not named & _GRAMMARS:
                yield from (node.lineno for node in own if _name(node) in readers and _may_be_text(node))


def _within(scope: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of a function or module, without those of its functions."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.Call):
            yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _within(child)


def _name(call: ast.Call) -> str:
    return (
        call.func.id
        if isinstance(call.func, ast.Name)
        else call.func.attr
        if isinstance(call.func, ast.Attribute)
        else ""
    )


def _may_be_text(call: ast.Call) -> bool:
    """Return False for arithmetic, constants, attributes and durations, which are numbers here."""
    given = call.args[0] if call.args else ast.Constant(0)
    number = (ast.BinOp, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant, ast.Attribute)
    if isinstance(given, ast.Name) and given.id.isupper():
        return False
    computed = isinstance(given, ast.Call) and _name(given) in {
        "total_seconds",
        "timestamp",
        "abs",
        "min",
        "max",
        "seconds",
    }
    return not isinstance(given, number) and not computed


def files() -> Iterator[tuple[str, Path]]:
    for folder in FOLDERS:
        for path in real_files(folder, "*.py"):
            yield str(path.relative_to(ROOT)), path


def test_no_reader_of_python_sees_text_before_its_grammar() -> None:
    """Issue 39: `Retry-After: inf` waited for a day."""
    found = {name: [*calls(path, _READERS)] for name, path in files()}
    assert {name: lines for name, lines in found.items() if lines and name not in STORED} == {}
    assert sorted(name for name in STORED if not found[name]) == []


def test_no_text_from_outside_reaches_int_before_its_grammar() -> None:
    found = {name: [*calls(path, {"int"})] for name, path in files() if name.startswith(OUTSIDE)}
    assert {name: lines for name, lines in found.items() if lines and name not in INTEGERS} == {}
    assert sorted(name for name in INTEGERS if not found[name]) == []


def test_a_planted_reader_is_found(tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text(
        "def bad(text):\n    return float(text)\n\n"
        "def good(text):\n    return float(text) if _NUMBER.fullmatch(text) else None\n\n"
        "def computed(span):\n    return float(span.total_seconds() * 2)\n"
    )
    assert [*calls(path, _READERS)] == [2]
