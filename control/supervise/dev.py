"""`tidewheel dev`: the local stack and every service in one terminal, with a reload of handlers.

The processes import their code while the stack starts. A stack of which a part runs already is used and left running.
One that this command has started is stopped at its end, also by the next `dev` after this one was killed.
"""

import asyncio
import secrets
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType] - trio, which it also takes, is not here

from tidewheel.api_keys import ApiKey, Scope, read_key
from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.client import Client
from tidewheel.control.supervise.local_stack import DevLock, DevStack, make_stack
from tidewheel.control.supervise.process import Log, Report
from tidewheel.control.supervise.supervisor import ROLES, Supervisor, make_services, module_files, stopping_by_signals
from tidewheel.errors import refuse
from tidewheel.local.daemon import free_port, is_free
from tidewheel.local.stack import StackInfo
from tidewheel.local.state import API_HEADERS_FILE, API_TOKEN_FILE, HOME_VARIABLE, write_private
from tidewheel.nouns.api_keys.sign_ins import add_sign_in
from tidewheel.postgres.session import connect
from tidewheel.settings.connections import Connections
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.settings.services import DEV_TOKEN, ApiSettings

_QUIET_MILLISECONDS = 50  # editors write a file in several steps
_LONGEST_MILLISECONDS = 500
_DRAIN = "5s"  # a reload must not wait for a long attempt: it is released, uncounted, and the new executor runs it
_HEADER = "Authorization: Bearer "  # every user of the machine reaches its loopback address: that alone opens nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class DevOptions:
    """The flags of `tidewheel dev`."""

    handlers: str | None  # modules, separated by commas
    home: Path | None
    api_port: int | None  # None for that of the settings, or a free one if it is in use
    metrics_port: int | None
    flags: Sequence[str]


async def run_dev(options: DevOptions, log: Log) -> bool:
    """Run all of Tidewheel until a signal; return False if a service could not be kept running."""
    began = monotonic_seconds()
    settings = ExecutorSettings.load(handlers=options.handlers)
    modules = module_files(settings.handlers)
    stack = make_stack(options.home)
    # A file that is saved twice within a second at equal length would be taken from its stale compiled form.
    variables = {HOME_VARIABLE: str(stack.home), "PYTHONDONTWRITEBYTECODE": "1"}
    if settings.handlers:
        variables["TIDEWHEEL_HANDLERS"] = settings.handlers
    if "drain_timeout" not in settings.model_fields_set:
        variables["TIDEWHEEL_DRAIN_TIMEOUT"] = _DRAIN
    if "log_runs" not in settings.model_fields_set:
        variables["TIDEWHEEL_LOG_RUNS"] = "true"
    with DevLock(stack.home) as lock:
        api = ApiSettings.load(api_port=options.api_port)
        port = _choose_api_port(api, options.api_port, log)
        url = f"http://{api.api_host}:{port}"
        variables["TIDEWHEEL_API_PORT"] = str(port)
        lock.add({"TIDEWHEEL_API_URL": f"{url}{api.api_base_path or ''}"})
        if api.api_token is None:
            variables["TIDEWHEEL_API_TOKEN"] = executor_token(stack.home)
        services = make_services(ROLES, variables, options.flags, options.metrics_port)
        supervisor = Supervisor(services, log, keeps_waiting=True)
        local = DevStack(stack, lock, supervisor, log)
        with stopping_by_signals(supervisor, log, "services are killed; `tidewheel down` stops the stack"):
            supervisor.start()
            supervisor.run_beside(_reload_on_save(supervisor, modules))
            try:
                info = await local.start()
                if info is not None:
                    supervisor.release()
                    supervisor.run_beside(local.keep(info))
                    link = await asyncio.to_thread(console_link, info.database_url, stack.home)
                    named_home = options.home is not None
                    shown = _Access(url, f"{url}{api.api_base_path or ''}/sign-in?link={link}")
                    supervisor.run_beside(_show(supervisor, log, info, shown, began, named_home=named_home))
                    await supervisor.wait_stopping()
            finally:
                await supervisor.stop()
                await local.stop()
    return not supervisor.has_failed


def executor_token(home: Path) -> str:
    """Return the token of executors in other languages, the same at each start.

    The files of access are in the stack's home, readable by their owner only, and stay for the next `dev`.
    """
    path = home / API_TOKEN_FILE
    if not path.exists():
        write_private(path, DEV_TOKEN + secrets.token_urlsafe(32))
    return path.read_text()


def console_link(database_url: str, home: Path) -> str:
    """Write the file with the header that opens REST; return what opens the console once."""
    path = home / API_HEADERS_FILE
    known = read_key(path.read_text().strip().removeprefix(_HEADER)) if path.exists() else None
    link = None if known is None else _link(database_url, known)
    if link is None:  # the key was revoked, has expired, or was of a database that is gone
        with Client(database_url) as client:
            text = client.api_keys.create("tidewheel dev", [Scope.ADMIN], all_tenants=True).key
        write_private(path, f"{_HEADER}{text}\n")
        made = read_key(text)
        link = None if made is None else _link(database_url, made)
    assert link is not None  # noqa: S101 - the key was made just now
    return link


@dataclass(frozen=True, slots=True)
class _Access:
    """The address of the API, and the link that opens the console once."""

    api: str
    console: str


def _choose_api_port(settings: ApiSettings, given: int | None, log: Log) -> int:
    """Return the API's port: the one given or set, else the default, else a free one."""
    port = settings.api_port
    if port == 0:
        return free_port()
    if is_free(port):
        return port
    problem = f"port {port} is in use"
    if "api_port" in settings.model_fields_set:
        name = "--api-port" if given is not None else "TIDEWHEEL_API_PORT"
        refuse(name, problem, "stop the process that `ss -ltnp` lists, or choose another port; 0 picks a free one")
    chosen = free_port()
    log.report(f"{problem}: the API listens on {chosen}", level="warning")
    return chosen


async def _reload_on_save(supervisor: Supervisor, modules: Collection[Path]) -> None:
    """Replace the executor when a file is saved that the present one has reported, until cancelled."""
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


async def _show(
    supervisor: Supervisor, log: Log, info: StackInfo, access: _Access, began: float, *, named_home: bool
) -> None:
    await supervisor.wait_settled()
    report = supervisor.last_report("executor")
    facts: Mapping[str, object] = {
        "api": access.api,
        "bootstrap": info.bootstrap,
        "home": str(info.data_dir),
        "handlers": report.handlers,
        "seconds": round(monotonic_seconds() - began, 1),
    }
    log.banner(_banner(info, access, report, began, named_home=named_home), "ready", facts)


def _banner(info: StackInfo, access: _Access, report: Report, began: float, *, named_home: bool) -> list[str]:
    handlers = report.handlers
    target = f"--handler {handlers[0]}" if handlers else "--url https://example.org/"
    return [
        f"Tidewheel is ready, after {monotonic_seconds() - began:.1f} s.",
        "",
        f"  handlers    {', '.join(handlers) or 'none; name their modules with --handlers'}",
        f"  console     {access.console}",
        f"  REST        {access.api}: curl -H @{shlex.quote(str(info.data_dir / API_HEADERS_FILE))}",
        "  PostgreSQL  tidewheel admin psql",
        f"  Kafka       {info.bootstrap}, by SASL; settings: tidewheel env --format kafka --secrets",
        f"  data        {info.data_dir}",
        "",
        "Next, in another terminal:",
        *([f"  export {HOME_VARIABLE}={shlex.quote(str(info.data_dir))}"] if named_home else []),
        f"  tidewheel job create first --manual {target}",
        "  tidewheel job trigger first",
        "  tidewheel run list",
        "A handler with a payload takes it by `job trigger first --payload JSON`.",
        "",
        "Saved handlers are reloaded. Ctrl-C stops all and keeps the data.",
    ]


def _link(database_url: str, key: ApiKey) -> str | None:
    with connect(Connections.load(database_url=database_url).database(), "tidewheel-dev") as connection:
        made = add_sign_in(connection, key.key_id, None, is_link=True)
    return None if made is None else made.text
