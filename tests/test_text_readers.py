"""No text from outside reaches Python's own readers before a grammar has accepted it.

`float` reads `inf`, `1e9` and `1_000`; `int` reads `1_000` and the digits of any script, and `UUID` what `int` reads;
`fromhex` and `b64decode` step over blanks and other characters; `fromisoformat` reads weeks, and in newer Pythons hour
24; `parsedate_to_datetime` reads nearly any words. So a call of one of these is in a function that calls `fullmatch` or
`isascii`, in a room that reads no text from outside, or its file is listed here with what has checked the text. Ids are
read by `read_uuid`.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.strict_types import LINKED, ROOT
from tests.tidewheel.postgres.test_statements import real_files

FOLDERS = ("tidewheel", *LINKED)
_BYTES = {"UUID", "fromhex", "b64decode", "urlsafe_b64decode", "b32decode", "unhexlify", "a2b_base64"}
_READERS = {
    "float", "Decimal", "Fraction", "fromisoformat", "strptime", "parsedate_to_datetime", "parsedate", *_BYTES,
}  # fmt: skip
_GRAMMARS = {"fullmatch", "isascii"}
_OWN = (
    "control/archive/", "control/occurrence_audit/", "control/restore/", "control/supervise/", "executor/isolation/",
    "executor/programs/", "migrations/", "relay/", "scheduler/", "tidewheel/kafka/", "tidewheel/local/",
    "tidewheel/postgres/", "tidewheel/process/", "tidewheel/transitions/",
)  # fmt: skip
"""Rooms that read what servers, the kernel and Tidewheel's own processes have written."""

STORED = {
    "control/api/models.py": "digits that the pattern of the field has accepted",
    "tidewheel/nouns/api_keys/sign_ins.py": "a cookie that this process has sealed",
    "control/explain/facts.py": "the name of a partition",
    "control/words.py": "a stored schedule, and text that the function itself has formatted",
    "executor/log_lines.py": "a time that the pattern has matched",
    "intake/group_requests.py": "an id of a request, which jobs/values.py has read",
    "schemas/avro.py": "a fingerprint that the function itself has computed",
    "schemas/interop.py": "a whole number of JSON, within 64 bits",
    "schemas/primitives.py": "eight bytes of Avro",
    "tidewheel/nouns/runs/reads.py": "digits that the patterns of its callers have accepted",
    "tidewheel/nouns/works/operations.py": "the filter of stored work",
    "tidewheel/schedules/decide.py": "the canonical text of a stored timer",
    "tidewheel/schedules/decision.py": "the canonical text of a stored timer",
    "tidewheel/schedules/schedule.py": "a stored schedule; jobs/values.py has read a submitted one",
    "tidewheel/task_tokens.py": "a token, which is compared as a whole with that of the attempt in it",
    "tidewheel/testing/stack.py": "the argument of a user's test",
}
INTEGERS = {
    "control/api/app.py": "the port of a socket",
    "control/api/request_input.py": "Content-Length, of which the server refuses all but digits",
    "control/explain/operations.py": "a month that the pattern has matched",
    "control/instants.py": "digits that its patterns have matched",
    "executor/runners/aws.py": "seconds that the executor has computed",
    "intake/next_version.py": "a number of a stored schedule",
    "schemas/avro.py": "the name of a folder of a release",
    "tidewheel/errors.py": "a problem that this release has written",
    "tidewheel/jobs/http_values.py": "an address that ipaddress has read",
    "tidewheel/jobs/strict_json.py": "digits that the JSON reader has matched",
    "tidewheel/jobs/validation.py": "a bound of a model",
    "tidewheel/schedules/cron_fields.py": "a day that the pattern has matched",
    "tidewheel/schedules/cron_parser.py": "an element that `cron_syntax` has accepted",
    "tidewheel/schedules/cron_syntax.py": "a word of an expression: its pattern has ASCII digits only",
    "tidewheel/schedules/describe.py": "an element that the parser has accepted",
    "tidewheel/schedules/zones.py": "the footer of a zone's file, from the package tzdata",
}


@cache
def parsed(path: Path) -> ast.Module:
    """Return the code of a file that names a reader."""
    text = path.read_text(encoding="utf-8")
    return ast.parse(text if any(f"{reader}(" in text for reader in {*_READERS, "int"}) or "map(" in text else "")


def calls(path: Path, readers: set[str]) -> Iterator[int]:
    """Yield the line of each call of a reader with text, in a function that has no grammar."""
    for scope in ast.walk(parsed(path)):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            own = list(_within(scope))
            named = {_name(node) for node in own}
            if not named & _GRAMMARS:
                yield from (node.lineno for node in own if _reads(node, readers))


def _reads(call: ast.Call, readers: set[str]) -> bool:
    """Return True if a call is one of a reader with text, or maps a reader."""
    if _name(call) == "map" and call.args:
        return _named(call.args[0]) in readers
    return _name(call) in readers and _may_be_text(call)


def _within(scope: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of a function or module, without those of its functions."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.Call):
            yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _within(child)


def _name(call: ast.Call) -> str:
    return _named(call.func)


def _named(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _may_be_text(call: ast.Call) -> bool:
    """Return False for arithmetic, constants, attributes and durations, which are numbers here.

    An id that is an attribute is the field of a record that a model or a codec has read.
    """
    keywords = {each.arg: each.value for each in call.keywords}
    given = call.args[0] if call.args else keywords.get("hex", ast.Constant(0))
    if isinstance(given, ast.Name) and given.id.isupper():
        return False
    if _name(call) in _BYTES:
        return not isinstance(given, ast.Constant | ast.Attribute) and "validate" not in keywords
    number = (ast.BinOp, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant, ast.Attribute)
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
            if not (name := str(path.relative_to(ROOT))).startswith(_OWN):
                yield name, path


def test_no_reader_of_python_sees_text_before_its_grammar() -> None:
    """Issue 39: `Retry-After: inf` waited for a day."""
    found = {name: [*calls(path, _READERS)] for name, path in files()}
    assert {name: lines for name, lines in found.items() if lines and name not in STORED} == {}
    assert sorted(name for name in STORED if not found[name]) == []


def test_no_text_from_outside_reaches_int_before_its_grammar() -> None:
    found = {name: [*calls(path, {"int"})] for name, path in files()}
    assert {name: lines for name, lines in found.items() if lines and name not in INTEGERS} == {}
    assert sorted(name for name in INTEGERS if not found[name]) == []


def test_a_planted_reader_is_found(tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text(
        "def bad(text):\n    return float(text)\n\n"
        "def good(text):\n    return float(text) if _NUMBER.fullmatch(text) else None\n\n"
        "def computed(span):\n    return float(span.total_seconds() * 2)\n\n"
        "def ids(texts, text):\n    return map(UUID, texts), UUID(text), UUID(hex=text), UUID(bytes=text)\n\n"
        "def content(text, row):\n    return b64decode(text), b64decode(text, validate=True), UUID(row.run_id)\n\n"
        "def padded(text):\n    return urlsafe_b64decode(text + '==')\n"
    )
    assert [*calls(path, _READERS)] == [2, 11, 11, 11, 14, 17]
