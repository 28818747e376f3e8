"""Write `generated/` and `json/`: `python -m tidewheel.schemas.generator.main [--check]`.

The files lie in the tree, so that people and type checkers can read them; a test compares them with what this module
would write. Edit the .avsc files and the models of requests, never these.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tidewheel.schemas.files import current
from tidewheel.schemas.generator.json_schema import json_schemas
from tidewheel.schemas.generator.records import records_module
from tidewheel.schemas.generator.shape import Shape
from tidewheel.schemas.generator.wire import wire_module


def main(arguments: list[str]) -> int:
    """Write the files that differ; with ``--check`` only say which do, and return 1 if any."""
    folder, made = Path(__file__).parents[1], generated_files()
    stale = [name for name, text in made.items() if _read(folder / name) != text]
    if arguments == ["--check"]:
        sys.stdout.writelines(f"{name} is not what its sources say; run `{_COMMAND}`\n" for name in stale)
        return 1 if stale else 0
    if arguments:
        sys.stderr.write(f"usage: {_COMMAND} [--check]\n")
        return 2
    for name in stale:
        (folder / name).write_text(made[name], "utf-8")
        sys.stdout.write(f"wrote {name}\n")
    return 0


def generated_files() -> dict[str, str]:
    """Return the text of each generated file by its path in `schemas`."""
    shape = Shape(json.loads(text) for text in current().values())
    modules = {"records.py": _joined(records_module(shape)), "wire.py": _joined(wire_module(shape))}
    return {f"generated/{name}": text for name, text in modules.items()} | {
        f"json/{stem}.json": text for stem, text in json_schemas(shape).items()
    }


_COMMAND = "python -m tidewheel.schemas.generator.main"


def _joined(lines: Iterator[str]) -> str:
    text = "\n".join(lines) + "\n"
    for line in text.splitlines():
        if len(line) > 120:
            msg = f"a generated line is longer than 120 characters; shorten the field's name or its doc: {line}"
            raise ValueError(msg)
    return text


def _read(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
