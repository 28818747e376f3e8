"""Start the embedded servers of this process from the programs of a cell.

It is a plugin of pytest (`-p tools.matrix.servers`), and starts the demo (`python -m tools.matrix.servers`).
"""

import os
import sys
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from tidewheel.local import jars, parts, postgres

PROGRAMS = "MATRIX_POSTGRES"
"""The variable with the folder of `initdb` and `postgres`."""

JARS = "MATRIX_KAFKA"
"""The variable with the manifest of the broker's jars."""

_OF_EVERY_RELEASE = 4  # of the arguments of initdb: the others came with PostgreSQL 16 and 17


class _OlderServer(postgres.Postgres):
    """A server without the settings that came with PostgreSQL 16.

    PostgreSQL 15 leaves its working directory as it starts, and returns by name: its user must pass the folders above.
    """

    def __init__(self, *places: Any, **settings: Any) -> None:  # noqa: ANN401 - those of its base
        super().__init__(*places, **settings)
        del self._settings["scram_iterations"]

    def _launch(self) -> None:
        for folder in self._folder.parents:
            if folder.is_relative_to(gettempdir()) and folder != Path(gettempdir()):
                folder.chmod(0o711)  # others may pass, and read nothing
        super()._launch()


def _replace_programs() -> None:
    if (programs := os.environ.get(PROGRAMS)) is not None:
        postgres.find_programs = lambda account: Path(programs)
        arguments = postgres._INITDB[:_OF_EVERY_RELEASE]  # pyright: ignore[reportPrivateUsage]
        postgres._INITDB = (*arguments, "--locale=C.UTF-8")  # type: ignore[assignment]  # pyright: ignore[reportPrivateUsage]
        setattr(parts, "Postgres", _OlderServer)  # noqa: B010
    if (manifest := os.environ.get(JARS)) is not None:
        jars.MANIFEST = Path(manifest)


_replace_programs()

if __name__ == "__main__":
    from examples.demo.__main__ import main

    sys.exit(main(keep=False))
