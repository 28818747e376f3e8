"""The rights that the statements of each service need, as PostgreSQL derives them.

`python -m tests.migrations.rights URL` prints them for a migrated database, as `service_roles.py` has them.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import cast

from psycopg.errors import Diagnostic

from tests.strict_types import ROOT
from tests.tidewheel.postgres.test_statements import numbered
from tidewheel.migrations.service_roles import SERVICES
from tidewheel.postgres.session import Conn, connect
from tidewheel.postgres.statements import Statements

# The first module of each service, and of what applications call. The statements are those of all modules below.
ENTRIES: Mapping[str, tuple[str, ...]] = {
    "scheduler": ("tidewheel.scheduler.loop",),
    "relay": ("tidewheel.relay.loop",),
    "intake": ("tidewheel.intake.service", "tidewheel.task_token_keys"),
    "executor": ("tidewheel.executor.loop", "tidewheel.task_token_keys"),
    "api": ("tidewheel.control.api.app", "tidewheel.task_token_keys"),
    "application": (
        "tidewheel.control.client.enqueue",
        "tidewheel.control.client.own_runs",
        "tidewheel.executor.complete_in",
    ),
}
STARTING = ("tidewheel.presence", "tidewheel.transitions.installation")  # of `control/services.py`
_STARTING_STATEMENTS = ("migrations_table_exists", "read_migrations", "find_schema")
_LETTERS = {
    2: "r",
    1: "a",
    4: "w",
    8: "d",
}  # Source: PostgreSQL's src/include/nodes/parsenodes.h, ACL_SELECT and others

_TYPE_CHECKING = re.compile(r"^if TYPE_CHECKING:\n(?: +.*\n|\n)+", re.MULTILINE)
_IMPORT = re.compile(r"^ *from (tidewheel[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
_NAME = re.compile(r"(?:^|[(,])\s*(\w+)")  # not the one behind `as`
_AT_ONCE = re.compile(r'\bStatements\("([\w.]+)"\)\["(\w+)"\]')
_FILE = re.compile(r'^(\w+) = Statements\("([\w.]+)"\)$', re.MULTILINE)
_NEEDED = re.compile(r":relid\s(\d+)\s:inh\s\w+\s:requiredPerms\s(\d+)\s")
_COPIED = re.compile(r"COPY (\w+) \(")
_LOCKED = re.compile(r"\bLOCK TABLE (\w+)")
_ADVANCED = re.compile(r"\b(?:nextval|setval)\(\s*(?:pg_get_serial_sequence\('(\w+)', '(\w+)'\)|'(\w+)')")
_GUARDED = re.compile(r"\b(tidewheel_(?:create_day|drop_day|enqueue|cancel|status))\(")

Rights = dict[str, set[str]]  # letters by table, view or sequence


@cache
def modules_of(service: str) -> set[str]:
    """Return the modules that a service imports, also those that it imports late."""
    found: set[str] = set()
    waiting = [*ENTRIES[service], *(() if service == "application" else STARTING)]
    while waiting:
        module = waiting.pop()
        if module not in found and not module.startswith("tidewheel.migrations"):
            found.add(module)
            waiting.extend(_imports(module))
    return found


@cache
def statements_of(service: str) -> set[tuple[str, str]]:
    """Return the statements that these modules bind: package and name."""
    bound = set[tuple[str, str]]().union(*map(_bound, modules_of(service)))
    if service == "application":
        return bound
    return bound | {("tidewheel.migrations", name) for name in _STARTING_STATEMENTS}


def functions_of(service: str) -> set[str]:
    """Return the functions that these modules call, and that not every user may call."""
    texts = [_text(module) for module in modules_of(service)]
    texts += [Statements(package)[name] for package, name in statements_of(service)]
    return {name for text in texts for name in _GUARDED.findall(text)}


def rights_of(connection: Conn, service: str) -> Rights:
    """Return the rights that a service needs, by table."""
    needed: Rights = defaultdict(set)
    for module in modules_of(service):
        for table in _COPIED.findall(_text(module)):
            needed[table].add("a")
    by_statement = _needed_by_statement(connection)
    for statement in statements_of(service):
        for table, letters in by_statement[statement].items():
            needed[table] |= letters
    return needed


def tables_with_a_tenant(connection: Conn) -> set[str]:
    """Return the tables from which the scheduler removes a deleted tenant, by names of the catalog."""
    rows = connection.execute(
        "SELECT c.relname::text FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid"
        " WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
        " AND a.attname = 'tenant' AND NOT a.attisdropped"
    )
    return {str(name) for (name,) in rows.fetchall()}


def written(letters: Iterable[str]) -> str:
    """Return letters in the order of PostgreSQL's own lists of rights, reading first."""
    return "".join(letter for letter in "rawd" if letter in set(letters))


@cache
def _file(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _text(module: str) -> str:
    """Return the text of a module, without the imports that only a type checker needs."""
    return _TYPE_CHECKING.sub("", _file(module).read_text())


@cache
def _imports(module: str) -> frozenset[str]:
    """Return Tidewheel's modules that a module imports, also late."""
    found: set[str] = set()
    for package, names in _IMPORT.findall(_text(module)):
        inner = {f"{package}.{name}" for name in _NAME.findall(re.sub("#.*", "", names))}
        modules = {each for each in inner if _file(each).is_file()}
        found |= modules if modules == inner or package == "tidewheel" else modules | {package}
    return frozenset(found)


@cache
def _bound(module: str) -> frozenset[tuple[str, str]]:
    """Return the statements that a module takes from `Statements`: package and name."""
    text = _text(module)
    found = set(_AT_ONCE.findall(text))
    for name, package in _FILE.findall(text):
        found |= {(package, each) for each in re.findall(rf'\b{name}\["(\w+)"\]', text)}
    return frozenset(found)


_known: dict[tuple[str, str], Rights] = {}


def _needed_by_statement(connection: Conn) -> dict[tuple[str, str], Rights]:
    """Return the rights that each statement needs, by the server's rewritten tree with views resolved."""
    if _known:
        return _known
    rows = connection.execute(
        "SELECT oid, relname::text FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
    )
    names = dict(cast("list[tuple[int, str]]", rows.fetchall()))
    details: list[str] = []

    def keep(diagnostic: Diagnostic) -> None:
        details.append(diagnostic.message_detail or "")

    connection.add_notice_handler(keep)
    # The trees are long: the client alone gets them, not the server's log.
    connection.execute(
        "SELECT set_config('log_min_messages', 'fatal', true), set_config('debug_pretty_print', 'off', true),"
        " set_config('client_min_messages', 'log', true), set_config('debug_print_rewritten', 'on', true)"
    )
    for package, name in {each for service in ENTRIES for each in statements_of(service)}:
        details.clear()
        text = Statements(package)[name]
        connection.pgconn.prepare(b"", numbered(text).encode())
        needed: Rights = defaultdict(set)
        for oid, bits in _NEEDED.findall(" ".join(details)):
            if int(oid) in names:
                needed[names[int(oid)]] |= {letter for bit, letter in _LETTERS.items() if int(bits) & bit}
        for table in _LOCKED.findall(text):
            needed[table].add("w")
        for table, column, sequence in _ADVANCED.findall(text):
            needed[sequence or f"{table}_{column}_seq"].add("w")
        _known[package, name] = {table: letters for table, letters in needed.items() if letters}
    connection.remove_notice_handler(keep)
    connection.rollback()
    return _known


def main() -> None:
    """Print the rights as `service_roles.py` has them."""
    with connect(sys.argv[1], "test") as connection:
        found = {service: rights_of(connection, service) for service in SERVICES}
        for table in tables_with_a_tenant(connection):
            found["scheduler"][table] |= set("rd")
    for table in sorted({table for rights in found.values() for table in rights}):
        parts = (
            f'"{service}": "{written(found[service][table])}"' for service in SERVICES if found[service].get(table)
        )
        sys.stdout.write(f'        "{table}": {{{", ".join(parts)}}},\n')
    for service in SERVICES:
        sys.stdout.write(f"# {service}: {sorted(functions_of(service))}\n")


if __name__ == "__main__":
    main()
