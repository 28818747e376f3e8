"""The trial of an upgrade: from the release before to this tree, back, and forward for good."""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

import psycopg

from tidewheel.clock import SystemClock
from tidewheel.errors import StackError
from tools.containers.images import BEFORE, RECIPES, TIDEWHEEL, WORK
from tools.containers.judge import attempt_faults, run_under_load
from tools.containers.load import open_console
from tools.containers.progress import step, wait_for
from tools.containers.site import SERVICES, Site
from tools.containers.trial import COMPOSE, HANDLER, addresses

_FRESH_SECONDS, _FORGET_SECONDS = 60.0, 180.0
_FRESH = (
    "SELECT version, count(*) FROM processes WHERE last_heartbeat_at > tidewheel_now() - interval '10 s' GROUP BY 1"
)
_POST = ("run", "--rm", "-T", "--no-deps", "migrate", "migrate", "--post")


def run_upgrade(tree: Path, work: str, site: Site) -> list[str]:
    """Replace the services of one release by those of the other under load; return the faults.

    Args:
        tree: The files of the release before.
        work: The image of its executor.
        site: That of compose.yaml, with nothing started.
    """
    began, at = SystemClock().now(), addresses(site)
    before = partial(_take, site, (tree / "compose" / "compose.yaml", HANDLER, RECIPES / "before.yaml"), work)
    with step(f"start compose.yaml of {BEFORE.version} until all containers are healthy, about 40 s"):
        before()
        site.start()
    key = site.tidewheel("api", "key", "create", "trial", "--scope", "admin").strip()
    changes: dict[str, Callable[[], object]] = {
        "create roles, kill a scheduler, which leaves its registration": partial(_prepare, site),
        f"replace all services by {TIDEWHEEL}, about 40 s": partial(_upgrade, site),
        f"return to {BEFORE.version}, about 40 s": partial(_return_to, site, before),
        "try migrate --post beside it": partial(_refuse_post, site),
        f"replace all services by {TIDEWHEEL} again, about 40 s": partial(_upgrade, site),
        "migrate --post --forget-silent, new key of task tokens, about 40 s": partial(_end_upgrade, site),
        "replace PostgreSQL and the broker, about 60 s": site.start,
        "sign in to the console, read a page": partial(open_console, at.api, key),
        "measure the memory": site.measure_memory,
    }
    faults = run_under_load(at, key, changes, partial(site.audit, began))
    return [*faults, *attempt_faults(at.database, {"released"})]


def _take(site: Site, files: tuple[Path, ...], work: str) -> None:
    site.files, site.work = files, work


def _prepare(site: Site) -> None:
    """Create the roles, whose rights `migrate --post` revokes, and leave a registration as after a crash."""
    site.run("run", "--rm", "-T", "--no-deps", "migrate", "migrate", "--roles")
    site.kill("scheduler")


def _upgrade(site: Site) -> None:
    """Take the steps of compose/README.md."""
    _take(site, (COMPOSE, HANDLER), WORK)
    for once in ("migrate", "topics"):
        site.run("run", "--rm", "-T", "--no-deps", once)
    _replace(site, version("tidewheel"))


def _return_to(site: Site, before: Callable[[], object]) -> None:
    before()
    _replace(site, BEFORE.version)


def _replace(site: Site, wanted: str) -> None:
    """Replace the services, and wait until each one that lives is of this release."""
    site.start(*SERVICES)

    def all_are_of_it() -> bool:
        with psycopg.connect(addresses(site).database) as connection:
            return connection.execute(_FRESH).fetchall() == [(wanted, len(SERVICES))]

    wait_for(all_are_of_it, f"all processes are of {wanted}", _FRESH_SECONDS)


def _refuse_post(site: Site) -> None:
    """Let `migrate --post` of this tree be refused, also where it forgets silent processes."""
    files, work = site.files, site.work
    _take(site, (COMPOSE, HANDLER), WORK)
    try:
        site.run(*_POST, "--forget-silent", "10m")
    except StackError as error:
        if "and others run" not in str(error):
            raise
    else:
        message = f"`migrate --post` is not refused beside {BEFORE.version}"
        raise StackError(message)
    finally:
        _take(site, tuple(files), work)


def _end_upgrade(site: Site) -> None:
    """Take the last steps of the changelog, after which nothing returns to the release before."""

    def is_done() -> bool:
        try:
            return "forgot   scheduler" in site.run(*_POST, "--forget-silent", "1m")
        except StackError as error:  # a minute is not over
            if "and others run: scheduler" not in str(error):
                raise
            return False

    wait_for(is_done, "the killed scheduler is silent for a minute", _FORGET_SECONDS)
    site.tidewheel("api", "admin", "secrets", "rotate", "task-tokens")
