"""The trials: start a Compose file, kill its containers under load, fail over, and judge what is left."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tidewheel.clock import SystemClock
from tools.containers.engine import Engine
from tools.containers.images import RECIPES, ROOT
from tools.containers.judge import Addresses, attempt_faults, run_under_load
from tools.containers.load import open_console
from tools.containers.progress import step, wait_for
from tools.containers.site import SERVICES, Site

COMPOSE, HANDLER = ROOT / "compose" / "compose.yaml", RECIPES / "handler.yaml"
PORTS = (5432, 5433, 8080, 8081, 9090, 29092, 29093, 29094)

_API, _BROKERS = "http://127.0.0.1:8080", "127.0.0.1:29092,127.0.0.1:29093,127.0.0.1:29094"
_SERVERS = ("postgres", "postgres-2", "kafka", "kafka-2", "kafka-3")
_STREAMING = "SELECT count(*) FROM pg_stat_replication WHERE application_name = 'walreceiver' AND state = 'streaming'"
_COPY_SECONDS = 120.0  # of an almost empty database
_SCRAPE_SECONDS = 120.0  # Prometheus looks every 15 s


def compose_site(engine: Engine, compose: Path, folder: Path) -> Site:
    """Return the site of compose.yaml."""
    return Site(engine, compose, folder, (COMPOSE, HANDLER), "tidewheel", (), ("postgres", "kafka", *SERVICES))


def deployed_site(engine: Engine, compose: Path, folder: Path) -> Site:
    """Return the site of deployed.yaml, without Grafana."""
    containers = (*_SERVERS, "prometheus", *(f"{name}{number}" for name in SERVICES for number in ("", "-2")))
    files = (COMPOSE.with_name("deployed.yaml"), HANDLER)
    return Site(engine, compose, folder, files, "tidewheel-deployed", (*_SERVERS, "prometheus", *SERVICES), containers)


def run_compose(site: Site) -> list[str]:
    """Kill each container of compose.yaml; return the faults."""
    kills = _kills(site, ("postgres",), ("kafka",), ("scheduler",), ("relay",), ("executor",), ("intake", "api"))
    return _run(site, addresses(site), kills)


def addresses(site: Site) -> Addresses:
    """Return those that compose.yaml publishes."""
    return Addresses(_API, "127.0.0.1:29092", f"postgresql://tidewheel:{site.password}@127.0.0.1/tidewheel")


def run_deployed(site: Site) -> list[str]:
    """Kill servers and services of deployed.yaml, and fail over by compose/README.md; return faults."""
    servers = "127.0.0.1:5432,127.0.0.1:5433"
    database = f"postgresql://tidewheel:{site.password}@{servers}/tidewheel?target_session_attrs=read-write"
    changes: dict[str, Callable[[], object]] = {
        "ask Prometheus for its targets and rules": _look_at_prometheus,
        **_kills(site, ("scheduler", "executor"), ("postgres-2",), ("kafka-2",)),
        "kill the primary, promote the standby": partial(_fail_over, site),
        "give the new primary a standby": partial(_give_standby, site),
        **_kills(site, ("kafka",)),
    }
    return _run(site, Addresses(_API, _BROKERS, database), changes)


def _kills(site: Site, *groups: Sequence[str]) -> dict[str, Callable[[], object]]:
    return {f"kill {' and '.join(names)}": partial(site.kill, *names) for names in groups}


def _run(site: Site, at: Addresses, changes: Mapping[str, Callable[[], object]]) -> list[str]:
    began = SystemClock().now()
    with step(f"start {site.files[0].name} until all containers are healthy, about 60 s"):
        site.start()
    key = site.tidewheel("api", "admin", "api-key", "create", "trial", "--scope", "admin").strip()
    first: dict[str, Callable[[], object]] = {
        "sign in to the console, read a page": partial(open_console, at.api, key),
        "measure the memory": site.measure_memory,
    }
    faults = run_under_load(at, key, {**first, **changes}, partial(site.audit, began))
    return [*faults, *attempt_faults(at.database, {"lost", "released"})]  # those of killed executors


def _look_at_prometheus() -> None:
    """Wait until Prometheus has scraped both containers of each service, and has evaluated each rule."""

    def ask(path: str) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(f"http://127.0.0.1:9090/api/v1/{path}", trust_env=False).json()["data"]
        return answer

    def scrapes_all() -> bool:
        up = Counter(each["labels"]["service"] for each in ask("targets")["activeTargets"] if each["health"] == "up")
        return up == dict.fromkeys(SERVICES, 2)

    def evaluates_all() -> bool:
        rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
        return bool(rules) and all(rule["health"] == "ok" for rule in rules)

    wait_for(scrapes_all, "Prometheus scrapes two containers of each service", _SCRAPE_SECONDS)
    wait_for(evaluates_all, "Prometheus evaluates each rule without an error", _SCRAPE_SECONDS)


def _fail_over(site: Site) -> None:
    site.run("kill", "postgres")  # so it sends nothing more, and no restart policy starts it
    _query_second(site, "SELECT pg_promote()")


def _give_standby(site: Site) -> None:
    site.run("rm", "--force", "postgres")
    site.run("run", "--rm", "--no-deps", "--entrypoint", "bash", "postgres", "-c", "rm -rf /var/lib/postgresql/*")
    site.run("up", "--detach", "postgres")
    wait_for(lambda: _query_second(site, _STREAMING) == "1", "the new standby follows", _COPY_SECONDS)
    _query_second(site, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")


def _query_second(site: Site, *statements: str) -> str:
    command = ("exec", "-T", "postgres-2", "psql", "-U", "tidewheel", "--tuples-only", "--no-align")
    return site.run(*command, *(f"--command={each}" for each in statements)).strip()
