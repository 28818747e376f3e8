"""The trial of an upgrade: from the release before to this tree, back, and forward for good."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tidewheel.clock import SystemClock
from tools.containers.images import BEFORE, RECIPES, TIDEWHEEL, WORK
from tools.containers.judge import run_under_load
from tools.containers.load import open_console
from tools.containers.progress import step
from tools.containers.site import Site
from tools.containers.trial import COMPOSE, HANDLER, addresses


def run_upgrade(tree: Path, work: str, site: Site) -> list[str]:
    """Replace the containers of one release by those of the other under load; return the faults.

    Args:
        tree: The files of the release before.
        work: The image of its executor.
        site: That of compose.yaml, with nothing started.
    """
    began, at = SystemClock().now(), addresses(site)
    with step(f"start compose.yaml of {BEFORE.version} until all containers are healthy"):
        _return_to(site, tree, work)
    key = site.tidewheel("api", "key", "create", "trial", "--scope", "admin").strip()
    changes: dict[str, Callable[[], object]] = {
        f"replace all by {TIDEWHEEL}": partial(_upgrade, site),
        f"return to {BEFORE.version}": partial(_return_to, site, tree, work),
        f"replace all by {TIDEWHEEL} again": partial(_upgrade, site),
        "migrate --post, new key of task tokens": partial(_end_upgrade, site),
        "sign in to the console, read a page": partial(open_console, at.api, key),
        "measure the memory": site.measure_memory,
    }
    return run_under_load(at, key, changes, partial(site.audit, began))


def _upgrade(site: Site) -> None:
    site.files, site.work = (COMPOSE, HANDLER), WORK
    site.start()


def _return_to(site: Site, tree: Path, work: str) -> None:
    site.files, site.work = (tree / "compose" / "compose.yaml", HANDLER, RECIPES / "before.yaml"), work
    site.start()


def _end_upgrade(site: Site) -> None:
    """Take the last steps of the changelog, after which nothing returns to the release before."""
    # PostgreSQL is replaced at the same time, so processes cannot delete their rows, which `--post` refuses.
    delete = f"DELETE FROM processes WHERE version = '{BEFORE.version}'"  # noqa: S608 - a version of this repository
    site.run("exec", "-T", "postgres", "psql", "-U", "tidewheel", f"--command={delete}")
    site.run("run", "--rm", "-T", "migrate", "migrate", "--post")
    site.tidewheel("api", "admin", "secrets", "rotate", "task-tokens")
