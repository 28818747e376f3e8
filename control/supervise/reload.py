"""Replace the executor when a file of its handlers is saved, or one that they import."""

import asyncio
from collections.abc import Collection
from pathlib import Path

from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType] - trio, which it also takes, is not here

from tidewheel.control.supervise.supervisor import Supervisor

_QUIET_MILLISECONDS = 50  # editors write a file in several steps
_LONGEST_MILLISECONDS = 500


async def reload_on_save(supervisor: Supervisor, modules: Collection[Path]) -> None:
    """Watch the files that each new executor reports, until cancelled.

    Args:
        supervisor: Runs the executor.
        modules: Files that are watched in any case.
    """
    files = {path.resolve() for path in modules}
    watching: asyncio.Task[None] | None = None
    watched: set[Path] = set()
    try:
        while True:
            files |= {Path(file) for file in (await supervisor.next_report("executor")).files}
            folders = {file.parent for file in files}
            if folders and not folders <= watched:
                # The next one watches before this one ends: no change is missed.
                following = asyncio.create_task(_watch(supervisor, folders, files))
                if watching is not None:
                    watching.cancel()
                watching, watched = following, folders
    finally:
        if watching is not None:
            watching.cancel()


async def _watch(supervisor: Supervisor, folders: Collection[Path], files: Collection[Path]) -> None:
    changed = awatch(
        *folders,
        watch_filter=lambda _, path: Path(path) in files,
        recursive=False,
        step=_QUIET_MILLISECONDS,
        debounce=_LONGEST_MILLISECONDS,
    )
    async for _ in changed:
        supervisor.change("executor")
