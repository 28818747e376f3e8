"""The schema files: the current ones, and those of every released version.

A schema's file is named after its record in snake case: `run_request.avsc` holds `io.tidewheel.RunRequest`.
"""

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

_HERE: Traversable = files("tidewheel.schemas")


@cache
def current() -> dict[str, str]:
    """Return the text of each current schema by its file's stem."""
    return _texts(_HERE)


@cache
def released() -> dict[str, dict[str, str]]:
    """Return the texts of each released version, oldest version first."""
    versions = [folder for folder in (_HERE / "released").iterdir() if folder.is_dir()]
    return {folder.name: _texts(folder) for folder in sorted(versions, key=lambda folder: _order(folder.name))}


def _texts(folder: Traversable) -> dict[str, str]:
    found = {file.name.removesuffix(".avsc"): file for file in folder.iterdir() if file.name.endswith(".avsc")}
    return {stem: found[stem].read_text("utf-8") for stem in sorted(found)}


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
