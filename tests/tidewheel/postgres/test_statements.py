"""Every statement: the database accepts it, a module binds it, its comment names its indexes.

Which index each hot statement takes is in test_sql_plans.py.
"""

import ast
import re
import sys
from pathlib import Path

import pytest
from psycopg.pq import ExecStatus

from tests.fixtures.database import Database
from tests.strict_types import LINKED, ROOT
from tidewheel.postgres.statements import Statements

FOLDERS = ("tidewheel", *LINKED)


def real_files(folder: str, pattern: str) -> list[Path]:
    """The files of a real folder: links lead to other real folders."""
    found = (ROOT / folder).rglob(pattern)
    return [path for path in found if not any(parent.is_symlink() for parent in path.parents)]


def package_of(folder: Path) -> str:
    """Return the import name of a real folder."""
    parts = folder.relative_to(ROOT).parts
    return ".".join(parts if parts[0] == "tidewheel" else ("tidewheel", *parts))


PACKAGES = sorted(package_of(path.parent) for folder in FOLDERS for path in real_files(folder, "queries.sql"))
STATEMENTS = [(package, name) for package in PACKAGES for name in Statements(package).names()]
PARAMETER = re.compile(r"%\((\w+)\)s")
INDEX_LINE = re.compile(r"^-- (?:Index|No index)\b.*", re.MULTILINE)
INDEX_NAME = re.compile(r"\b[a-z_]+_(?:pkey|key|due|by_[a-z]+|deadline|waiting|in_order)\b")


def numbered(statement: str) -> str:
    """The statement with $1, $2, … as the server wants them."""
    names = list(dict.fromkeys(PARAMETER.findall(statement)))
    return PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", statement)


def bound_names(path: Path) -> set[tuple[str, str]]:
    """The (package, statement) pairs that a module takes from `Statements`."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text if "Statements" in text else "")
    packages: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="Statements"), args=[argument])
            ):
                packages[name] = ast.literal_eval(argument)
            case _:
                pass
    bound: set[tuple[str, str]] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key))) if name in packages:
                bound.add((packages[name], key))
            case ast.Subscript(
                value=ast.Call(func=ast.Name(id="Statements"), args=[argument]), slice=ast.Constant(value=str(key))
            ):
                bound.add((ast.literal_eval(argument), key))
            case _:
                pass
    return bound


@pytest.mark.parametrize("package", PACKAGES)
def test_statements_are_valid_on_the_migrated_schema(shared_database: Database, package: str) -> None:
    refused: dict[str, str] = {}
    with shared_database.transaction() as connection:
        for name in Statements(package).names():
            answer = connection.pgconn.prepare(b"", numbered(Statements(package)[name]).encode())
            if answer.status != ExecStatus.COMMAND_OK:
                refused[name] = answer.error_message.decode()
                connection.rollback()
    assert refused == {}


@pytest.mark.landing
def test_bound_statements_equal_the_defined_ones() -> None:
    files = [path for folder in FOLDERS for path in real_files(folder, "*.py")]
    bound = set[tuple[str, str]]().union(*map(bound_names, files))
    assert bound == set(STATEMENTS)


def test_indexes_named_in_comments_exist(shared_database: Database) -> None:
    known = {name for (name,) in shared_database.rows("SELECT indexname FROM pg_indexes WHERE schemaname = 'public'")}
    for package, name in STATEMENTS:
        promised = {
            index for line in INDEX_LINE.findall(Statements(package)[name]) for index in INDEX_NAME.findall(line)
        }
        assert promised <= known, f"{package}: {name}"


def test_unknown_statement_is_refused_with_its_file() -> None:
    with pytest.raises(KeyError, match=r"tidewheel\.relay/queries\.sql has no block named 'publish'"):
        Statements("tidewheel.relay")["publish"]


def test_shared_part_is_spliced_with_the_alias_of_the_statement() -> None:
    claim, sweep = Statements("tidewheel.transitions")["lock_claims"], Statements("tidewheel.executor")["find_due_runs"]
    assert ("o.created_at <= c.created_before" in claim, "d.created_at <= c.created_before" in sweep) == (True, True)
    assert not any("{{" in Statements(package)[name] for package, name in STATEMENTS)


def test_unknown_part_is_refused_with_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_statements"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "queries.sql").write_text("-- name: read\nSELECT {{tidewheel.relay.lost(o)}}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ValueError, match=r"some_statements/queries\.sql names the part 'lost', which tidewheel\.relay"):
        Statements("some_statements")
