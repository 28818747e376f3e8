"""The stub of the client for coroutines: its source without bodies, with the methods of each part."""

import ast
import inspect
from collections.abc import Collection, Iterator
from pathlib import Path

from tidewheel.control.client import async_client
from tidewheel.control.client.client import Client
from tidewheel.nouns.operation import Noun

_KEPT = {"_Part", "_call", "_Thread"}  # of the names that no caller uses


def async_stub(client: Client) -> str:
    """Return the stub of `AsyncClient` and of its parts."""
    source = ast.parse(Path(inspect.getfile(async_client)).read_text(encoding="utf-8"))
    parts = {name: type(part) for name, part in vars(client).items() if isinstance(part, Noun)}
    kinds: dict[str, type] = {"AsyncClient": Client, **{f"Async{each.__name__}": each for each in parts.values()}}
    lines = ["# `python -m tests.golden` writes this file.\n# pyright: reportUnusedImport=false\n"]
    lines += [f"from {each.__module__} import {each.__name__}" for each in kinds.values()]
    for each in source.body:
        match each:
            case ast.Import() | ast.ImportFrom():
                lines.append(ast.unparse(each))
            case ast.Assign(targets=[ast.Name(id="P" | "S" | "T")]):
                lines.append(ast.unparse(each))
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) if name in _KEPT or name in kinds:
                lines.append(ast.unparse(_without_bodies(each)))
                if (kind := kinds.pop(name, None)) is not None:
                    lines += _methods(kind, set(_names_in(each)))
            case _:
                pass
        if getattr(each, "name", "") == "AsyncClient":
            lines += [f"    {name}: Async{part.__name__}" for name, part in parts.items()]
    for name, kind in kinds.items():
        lines += [f"class {name}(_Part[{kind.__name__}], of={kind.__name__}):", *_methods(kind, ())]
    return "\n".join([*lines, ""])


def _names_in(of: ast.stmt) -> Iterator[str]:
    for each in ast.walk(of):
        match each:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                yield name
            case _:
                pass


def _methods(kind: type, own: Collection[str]) -> Iterator[str]:
    for name, _ in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and name not in own:
            yield f"    {name} = _call({kind.__name__}.{name})"


def _without_bodies(statement: ast.stmt) -> ast.stmt:
    for each in ast.walk(statement):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            each.body = [ast.Expr(ast.Constant(...))]
    return statement
