"""Metrics count committed work and spans show it: a transaction may be rolled back or repeated."""

import ast
from collections.abc import Iterator

from tests.strict_types import ROOT

FILES = [
    path
    for folder in ("control", "executor", "intake", "relay", "scheduler", "tidewheel")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not any(part.is_symlink() for part in path.parents)
]
COUNTS = {"count", "observe"}
OF_A_TRANSACTION = {"Conn", "Writing"}


def is_transaction(item: ast.withitem) -> bool:
    call = item.context_expr
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "transaction"


def takes_connection(function: ast.FunctionDef) -> bool:
    """True of a function of the caller's transaction."""
    kinds = [one.annotation for one in (*function.args.args, *function.args.kwonlyargs)]
    return any(isinstance(kind, ast.Name) and kind.id in OF_A_TRANSACTION for kind in kinds)


def is_spans(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "tracing.spans"


def counted_within(node: ast.AST, within: bool = False) -> Iterator[int]:  # noqa: FBT001, FBT002 - of one recursion
    """Yield the lines that count within a transaction; a `partial` for `at_commit` is no call."""
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        within = isinstance(node, ast.FunctionDef) and takes_connection(node)
    elif isinstance(node, ast.With):
        within |= any(map(is_transaction, node.items))
    elif within and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if isinstance(owner, ast.Name) and owner.id == "metrics" and node.func.attr in COUNTS:
            yield node.lineno
        if is_spans(owner):
            yield node.lineno
    elif within and isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id != "partial":
        yield from (node.lineno for given in node.args if is_spans(given))
    for child in ast.iter_child_nodes(node):
        yield from counted_within(child, within)


def test_counters_are_raised_after_the_commit() -> None:
    texts = [(path, path.read_text(encoding="utf-8")) for path in FILES]
    texts = [(path, text) for path, text in texts if "metrics" in text or "tracing" in text]
    found = [f"{path}:{line}" for path, text in texts for line in counted_within(ast.parse(text))]
    assert not found
