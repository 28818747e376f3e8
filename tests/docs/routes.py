"""Write the table of routes in docs/scale.md: `python -m tests.docs.routes`.

A test compares it with the statements.

Parse each packaged statement, and each statement inside a function of the migrations. Report for the tables that would
be distributed over several PostgreSQL servers whether the statement fixes one value of the distribution column. Then
one server runs it. Conditions count where all of them must hold: none inside OR, NOT or CASE.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, cast

from pglast import parse_plpgsql, parse_sql
from pglast.visitors import Visitor

from tidewheel.postgres.statements import Statements

Node: TypeAlias = Any  # a node of pglast, whose members have no types
ast: Node = import_module("pglast.ast")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scale.md"
BEGIN, END = "<!-- routes -->\n", "<!-- end of routes -->\n"
_NOUNS = sorted(file.parent.name for file in ROOT.glob("tidewheel/nouns/*/queries.sql"))
PACKAGES = (
    "tidewheel.scheduler", "tidewheel.relay", "tidewheel.executor", "tidewheel.transitions", "tidewheel.intake",
    "tidewheel.control", *(f"tidewheel.nouns.{noun}" for noun in _NOUNS), "tidewheel",
)  # fmt: skip
FUNCTIONS = "functions of the migrations"

# The columns that fix a job or a run, whose shard follows from the id. `shard` itself is the distribution column.
_BY_SHARD: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("jobs", "job_versions", "timers", "overrides", "skips", "active_runs"), frozenset({"job_id"})),
    **dict.fromkeys(("job_runs", "finished_runs", "runs"), frozenset({"run_id", "job_id"})),
    **dict.fromkeys(("run_inputs", "attempts", "ended_attempts", "attempt_outputs", "signals"), frozenset({"run_id"})),
    "deferred_effects": frozenset({"run_id"}),
    "outbox": frozenset(),
}
_SHARD = {"outbox": "slice_lane"}  # a slice is a range of shards
_OWN: Mapping[str, frozenset[str]] = {
    "requests": frozenset({"request_id"}),
    "run_keys": frozenset({"key_id"}),
    "order_keys": frozenset({"key_id"}),
    "dedupes": frozenset({"dedupe_id"}),
    "workflows": frozenset({"root_run_id"}),
    "joins": frozenset({"child_run_id"}),
    "batches": frozenset({"batch_id"}),
    "batch_runs": frozenset({"batch_id"}),
    "run_edges": frozenset({"batch_id"}),
    "failed_runs": frozenset({"run_id"}),
    "job_days": frozenset({"job_id"}),
}
DISTRIBUTED = frozenset({*_BY_SHARD, *_OWN})

# Each batch of uniform runs is fired, published, claimed and ended by these, or by their careful forms.
HOT = {
    "tidewheel.scheduler": ("lock_due_timers",),
    "tidewheel.relay": ("read_outbox", "delete_outbox"),
    "tidewheel.executor": ("find_due_runs",),
    "tidewheel.transitions": ("move_timers", "claim_uniform", "start_attempts", "close_uniform", "close_runs"),
}


class Route(IntEnum):
    """The number of servers that run a statement, the best first."""

    NONE = 0
    SHARD = 1
    ID = 2
    BATCH = 3
    ADDRESS = 4
    ALL = 5


WORDS = {
    Route.NONE: "only tables that each server has",
    Route.SHARD: "one server: the distribution column has one value",
    Route.ID: "one server, once the condition on the column is added: one job or run, whose id has the shard",
    Route.BATCH: "several: a list of jobs, runs or shards",
    Route.ADDRESS: "none as it is: it finds rows by their physical address, which differs from server to server",
    Route.ALL: "every server: no condition on them",
}


@dataclass
class _Scope:
    """One SELECT, UPDATE, DELETE, INSERT or MERGE."""

    tables: dict[str, str] = field(default_factory=dict[str, str])
    equal: list[tuple[tuple[str, str], object]] = field(default_factory=list[tuple[tuple[str, str], object]])


def main() -> None:
    """Write the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{table()}{END}{after}", encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.name}\n")


def table() -> str:
    """Return the table of counts, and the one of the hot statements."""
    found = {package: routes_of(package) for package in PACKAGES} | {FUNCTIONS: routes_of_functions()}
    shown = [route for route in Route if route is not Route.NONE]
    lines = [
        "| Statements of | one server | one id | a list | by address | every server | no distributed table |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    total: Counter[Route] = Counter()
    for package, routes in found.items():
        counts = Counter(routes.values())
        total += counts
        lines.append(_row(f"`{package}`" if "." in package or package == "tidewheel" else package, counts, shown))
    lines.append(_row("all", total, shown))
    lines += ["", "| Statement of the hot path | Servers |", "| --- | --- |"]
    for package, names in HOT.items():
        lines += [f"| `{package.rpartition('.')[2]}`: `{name}` | {WORDS[found[package][name]]} |" for name in names]
    return "\n".join([*lines, ""])


def _row(name: str, counts: Counter[Route], shown: Sequence[Route]) -> str:
    return f"| {name} | {' | '.join(str(counts[route]) for route in shown)} | {counts[Route.NONE]} |"


def routes_of(package: str) -> dict[str, Route]:
    """Return the route of each statement of a package."""
    statements = Statements(package)
    return {name: route_of(_plain(statements[name])) for name in statements.names()}


def routes_of_functions() -> dict[str, Route]:
    """Return the worst route of the statements in each function of the migrations."""
    found: dict[str, Route] = {}
    for file in sorted((ROOT / "migrations").glob("0*.sql")):
        for raw in parse_sql(file.read_text(encoding="utf-8")):
            made = cast("Node", raw.stmt)
            if isinstance(made, ast.CreateFunctionStmt):
                name = str(made.funcname[-1].sval)
                found[name] = max((route_of(text) for text in _texts_of(made, _source(file, raw))), default=Route.NONE)
    return found


def route_of(statement: str) -> Route:
    """Return the worst route of the distributed tables in a statement.

    >>> route_of("SELECT FROM job_runs WHERE shard = $1 AND state = 'queued'").name
    'SHARD'
    >>> route_of("UPDATE job_runs SET state = 'queued' WHERE run_id = ANY ($1)").name
    'BATCH'
    >>> route_of("UPDATE job_runs AS r SET state = 'queued' FROM found WHERE r.ctid = found.at").name
    'ADDRESS'
    >>> route_of("SELECT FROM job_runs WHERE run_id = $1 OR job_id = $1").name
    'ALL'
    """
    visitor = _Reader()
    visitor(parse_sql(statement))
    return max((route for scope in visitor.scopes for route in _routes(scope, visitor.derived)), default=Route.NONE)


class _Reader(Visitor):
    """Collects the scopes of a statement, each with its tables and equalities."""

    def __init__(self) -> None:
        super().__init__()
        self.scopes: list[_Scope] = []
        self.derived: set[str] = set()

    def visit_CommonTableExpr(self, _ancestors: object, node: Node) -> None:
        self.derived.add(str(node.ctename))

    def visit_SelectStmt(self, _ancestors: object, node: Node) -> None:
        scope = _Scope()
        for item in node.fromClause or ():
            _add_from(scope, item)
        _add_conditions(scope, node.whereClause)
        self.scopes.append(scope)

    def visit_UpdateStmt(self, _ancestors: object, node: Node) -> None:
        self._written(node, node.fromClause)

    def visit_DeleteStmt(self, _ancestors: object, node: Node) -> None:
        self._written(node, node.usingClause)

    def visit_InsertStmt(self, _ancestors: object, node: Node) -> None:
        scope = _Scope()
        _add_from(scope, node.relation)
        rows = getattr(node.selectStmt, "valuesLists", None)
        source = rows[0] if rows and len(rows) == 1 else None
        names = [str(column.name) for column in node.cols or ()]
        alias = next(iter(scope.tables), "")
        # One row has one value; rows of a query have as many as there are rows.
        if source is None:
            scope.equal += [((alias, name), "list") for name in names]
        else:
            scope.equal += [((alias, name), "value") for name in names]
        self.scopes.append(scope)

    def _written(self, node: Node, others: Node) -> None:
        scope = _Scope()
        _add_from(scope, node.relation)
        for item in others or ():
            _add_from(scope, item)
        _add_conditions(scope, node.whereClause)
        self.scopes.append(scope)


def _add_from(scope: _Scope, item: Node) -> None:
    match item:
        case ast.RangeVar():
            alias = item.alias.aliasname if item.alias else item.relname
            scope.tables[str(alias)] = str(item.relname)
        case ast.JoinExpr():
            _add_from(scope, item.larg)
            _add_from(scope, item.rarg)
            _add_conditions(scope, item.quals)
            for name in item.usingClause or ():
                aliases = list(scope.tables)[-2:]
                if len(aliases) == 2:
                    one, other = ((alias, str(name.sval)) for alias in aliases)
                    scope.equal += [(one, other), (other, one)]
        case ast.RangeSubselect() | ast.RangeFunction():
            if item.alias:
                scope.tables[str(item.alias.aliasname)] = ""
        case _:
            pass


def _add_conditions(scope: _Scope, condition: Node) -> None:
    match condition:
        case ast.BoolExpr() if condition.boolop == 0:
            for each in condition.args:
                _add_conditions(scope, each)
        case ast.A_Expr() if _is_equality(condition):
            listed = condition.kind == 1  # = ANY
            for left, right in _pairs(condition.lexpr, condition.rexpr):
                for one, other in ((left, right), (right, left)):
                    if isinstance(one, tuple):
                        scope.equal.append((cast("tuple[str, str]", one), "list" if listed else other))
        case ast.A_Expr() if condition.kind == 7:  # IN
            left = _side(condition.lexpr)
            if isinstance(left, tuple):
                scope.equal.append((cast("tuple[str, str]", left), "list"))
        case ast.SubLink() if condition.testexpr is not None:
            left = _side(condition.testexpr)
            if isinstance(left, tuple):
                scope.equal.append((cast("tuple[str, str]", left), "list"))
        case _:
            pass


def _is_equality(condition: Node) -> bool:
    return condition.kind in {0, 1} and [str(name.sval) for name in condition.name] == ["="]


def _pairs(left: Node, right: Node) -> Iterator[tuple[object, object]]:
    if isinstance(left, ast.RowExpr) and isinstance(right, ast.RowExpr):
        yield from ((_side(one), _side(other)) for one, other in zip(left.args, right.args, strict=True))
    else:
        yield _side(left), _side(right)


def _side(expression: Node) -> object:
    """Return a column as alias and name; a value, or the text `list`."""
    while isinstance(expression, ast.TypeCast | ast.CollateClause):
        expression = expression.arg
    match expression:
        case ast.ColumnRef() if all(isinstance(part, ast.String) for part in expression.fields):
            parts = [str(part.sval) for part in expression.fields]
            if len(parts) == 1 and parts[0].startswith(("v_", "p_")):
                return "value"  # a variable of a function
            return (parts[-2] if len(parts) > 1 else "", parts[-1])
        case ast.SubLink():
            return "value" if expression.subLinkType == 4 else "list"
        case _:
            return "value"


def _routes(scope: _Scope, derived: set[str]) -> Iterator[Route]:
    known = _known(scope, derived)
    for alias, name in scope.tables.items():
        if name not in DISTRIBUTED or name in derived:
            continue
        ids = _BY_SHARD.get(name, _OWN.get(name, frozenset()))
        column = _SHARD.get(name, "shard") if name in _BY_SHARD else ""
        fixed = {column_: kind for (owner, column_), kind in known.items() if owner == alias}
        if fixed.get(column) == "value" or (name in _OWN and any(fixed.get(each) == "value" for each in ids)):
            yield Route.SHARD
        elif any(fixed.get(each) == "value" for each in ids):
            yield Route.ID
        elif any(fixed.get(each) == "list" for each in (*ids, column)):
            yield Route.BATCH
        elif "ctid" in fixed:
            yield Route.ADDRESS
        else:
            yield Route.ALL


def _known(scope: _Scope, derived: set[str]) -> dict[tuple[str, str], str]:
    """Return the columns with one value and those with a list, through equal columns of joined tables."""
    known: dict[tuple[str, str], str] = {}
    pairs = [(owner, other) for column, other in scope.equal for owner in _owners(scope, column)]
    known |= {owner: "address" for owner, _ in pairs if owner[1] == "ctid"}
    for _ in range(len(pairs) + 1):
        for owner, other in pairs:
            kinds = [other] if isinstance(other, str) else _kinds(scope, derived, known, cast("tuple[str, str]", other))
            for kind in kinds:
                if known.get(owner) != "value":
                    known[owner] = str(kind)
    return known


def _kinds(scope: _Scope, derived: set[str], known: Mapping[tuple[str, str], str], other: tuple[str, str]) -> list[str]:
    found: list[str] = []
    for owner in _owners(scope, other):
        table_name = scope.tables.get(owner[0])
        if table_name is None:
            # A variable of a function has one value; a column of the query around as many as that has rows.
            found.append("list" if owner[0] else "value")
        elif table_name in derived or not table_name:
            found.append("list")
        elif owner in known:
            found.append(known[owner])
    return found


def _owners(scope: _Scope, column: tuple[str, str]) -> list[tuple[str, str]]:
    alias, name = column
    if alias:
        return [column]
    if name == "ctid":
        return [(each, name) for each in scope.tables]
    owners = [
        (each, name)
        for each, owner in scope.tables.items()
        if not owner or name in _columns().get(owner, frozenset[str]())
    ]
    return owners or [("", name)]


@cache
def _columns() -> Mapping[str, frozenset[str]]:
    """Return the columns of each table of the migrations."""
    found: dict[str, frozenset[str]] = {}
    for file in (ROOT / "migrations").glob("0*.sql"):
        for raw in parse_sql(file.read_text(encoding="utf-8")):
            match raw.stmt:
                case ast.CreateStmt() as made:
                    names = [str(each.colname) for each in made.tableElts or () if isinstance(each, ast.ColumnDef)]
                    found[str(made.relation.relname)] = frozenset(names)
                case ast.ViewStmt() as view:
                    targets = view.query.larg.targetList if view.query.larg else view.query.targetList
                    found[str(view.view.relname)] = frozenset(
                        str(each.name or each.val.fields[-1].sval)
                        for each in targets
                        if each.name or hasattr(each.val, "fields")
                    )
                case _:
                    pass
    return found


def _plain(statement: str) -> str:
    """Return a statement with PostgreSQL's parameters for those of the driver."""
    return re.sub(r"%(?:\(\w+\))?[sbt]", "$1", statement).replace("%%", "%")


def _source(file: Path, raw: Node) -> str:
    return file.read_text(encoding="utf-8")[raw.stmt_location : raw.stmt_location + raw.stmt_len]


def _texts_of(made: Node, source: str) -> list[str]:
    """Return the statements in a function's body."""
    options = {str(option.defname): option.arg for option in made.options}
    if "plpgsql" not in str(getattr(options["language"], "sval", "")):
        body = options.get("as")
        return [str(body[0].sval)] if body else []
    queries: list[str] = []

    def walk(node: object) -> None:
        if isinstance(node, dict):
            query = cast("dict[str, object]", node).get("query")
            if isinstance(query, str) and re.match(
                r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|MERGE)\b", query, re.IGNORECASE
            ):
                queries.append(query)
            for each in cast("dict[str, object]", node).values():
                walk(each)
        elif isinstance(node, list):
            for each in cast("list[object]", node):
                walk(each)

    walk(json.loads(json.dumps(parse_plpgsql(source))))
    return queries


if __name__ == "__main__":
    main()
