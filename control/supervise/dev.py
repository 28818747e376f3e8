"""`tidewheel dev`: the local stack and every service in one terminal.

The processes import their code while the stack starts. A stack that runs already is used and left running; one that
this command has started is stopped at its end, also by the next `dev` after this one was killed.
"""

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidewheel.clock import monotonic_seconds
from tidewheel.control.local_stack import make_stack, start_stack
from tidewheel.control.supervise.dev_lock import DevLock
from tidewheel.control.supervise.log import Log
from tidewheel.control.supervise.ports import choose_api_port
from tidewheel.control.supervise.reload import reload_on_save
from tidewheel.control.supervise.services import ROLES, make_services, module_files
from tidewheel.control.supervise.signals import stopping_by_signals
from tidewheel.control.supervise.supervisor import Supervisor
from tidewheel.errors import StackError
from tidewheel.local.progress import Step
from tidewheel.local.stack import LocalStack, StackInfo
from tidewheel.local.state import HOME_VARIABLE
from tidewheel.settings.executor import ExecutorSettings

_DRAIN = "5s"  # a reload must not wait for a long attempt: it is released, uncounted, and the new executor runs it


@dataclass(frozen=True, slots=True, kw_only=True)
class DevOptions:
    """The flags of `tidewheel dev`.

    Args:
        handlers: Modules with handlers, separated by commas.
        home: The stack's folder; None for the default.
        api_port: The API's port; None for that of the settings, or a free one if it is in use.
        metrics_port: The first port of metrics.
        flags: Flags of every service.
    """

    handlers: str | None
    home: Path | None
    api_port: int | None
    metrics_port: int | None
    flags: Sequence[str]


async def run_dev(options: DevOptions, log: Log) -> bool:
    """Run all of Tidewheel until a signal; return False if a service could not be kept running.

    Raises:
        StackError: The stack cannot be started, or another `dev` uses it.
        Refused: A module with handlers does not exist, or a port is in use.
        SettingsError: A setting is invalid.
    """
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
    with DevLock(stack.home) as lock:
        host, port = choose_api_port(options.api_port, log)
        variables["TIDEWHEEL_API_PORT"] = str(port)
        services = make_services(ROLES, variables, options.flags, options.metrics_port)
        supervisor = Supervisor(services, log, keeps_waiting=True)
        with stopping_by_signals(supervisor, log, "the services are killed; `tidewheel down` stops the stack"):
            supervisor.start()
            watching = asyncio.create_task(reload_on_save(supervisor, modules))
            try:
                info = await _start(stack, lock, supervisor, log)
                if info is not None:
                    supervisor.release()
                    showing = asyncio.create_task(
                        _show(
                            supervisor,
                            log,
                            info,
                            f"http://{host}:{port}",
                            began,
                            named_home=options.home is not None,
                        )
                    )
                    await supervisor.wait_stopping()
                    showing.cancel()
            finally:
                watching.cancel()
                await supervisor.stop()
                await _stop(stack, lock, log)
    return not supervisor.has_failed


async def _start(stack: LocalStack, lock: DevLock, supervisor: Supervisor, log: Log) -> StackInfo | None:
    """Start the stack on a thread; return None if a stop was requested meanwhile."""
    stopping = asyncio.create_task(supervisor.wait_stopping())
    last = ""

    def progress(step: Step) -> None:
        nonlocal last
        if stopping.done():
            raise _StopRequested
        what, _, _ = step.what.partition(":")
        if what != last:
            last = what
            log.report(what)

    def start() -> StackInfo:
        if not stack.status().is_running:
            lock.own_stack()
        return start_stack(stack, progress)

    try:
        return await asyncio.to_thread(start)
    except _StopRequested:
        return None
    finally:
        stopping.cancel()


async def _stop(stack: LocalStack, lock: DevLock, log: Log) -> None:
    if lock.owns_stack:
        await asyncio.to_thread(stack.down, progress=lambda step: log.report(step.what))
        lock.release_stack()
        log.report(f"stopped; the data in {stack.home} is kept")
    else:
        log.report("stopped; PostgreSQL and Kafka go on, as they ran before: `tidewheel down` stops them")


class _StopRequested(StackError):
    """A stop was requested while the stack starts."""


async def _show(supervisor: Supervisor, log: Log, info: StackInfo, api: str, began: float, *, named_home: bool) -> None:
    await supervisor.wait_settled()
    handlers = supervisor.last_report("executor").handlers
    facts: Mapping[str, object] = {
        "api": api,
        "bootstrap": info.bootstrap,
        "home": str(info.data_dir),
        "handlers": handlers,
        "seconds": round(monotonic_seconds() - began, 1),
    }
    log.banner(_banner(info, api, handlers, began, named_home=named_home), "ready", facts)


def _banner(info: StackInfo, api: str, handlers: Sequence[str], began: float, *, named_home: bool) -> list[str]:
    target = f"--handler {handlers[0]}" if handlers else "--url https://example.org/"
    return [
        f"Tidewheel is ready, after {monotonic_seconds() - began:.1f} s.",
        "",
        f"  handlers    {', '.join(handlers) or 'none: --handlers names their modules'}",
        f"  HTTP API    {api}",
        "  PostgreSQL  tidewheel psql",
        f"  Kafka       {info.bootstrap}; tidewheel env --format kafka --secrets",
        f"  data        {info.data_dir}",
        "",
        "Next, in another terminal:",
        *([f"  export {HOME_VARIABLE}={shlex.quote(str(info.data_dir))}"] if named_home else []),
        f"  tidewheel job create first --manual {target}",
        "  tidewheel job trigger first",
        "  tidewheel run list",
        "",
        "A saved handler is reloaded. Ctrl-C stops all and keeps the data.",
    ]
