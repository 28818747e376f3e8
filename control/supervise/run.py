"""`tidewheel serve`: services of an installation as one unit, until a signal.

The first signal stops them in order, a second one ends at once: also those of `tidewheel dev`.
"""

import asyncio
import os
import signal
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from tidewheel.control.supervise.log import Log
from tidewheel.control.supervise.process import Service
from tidewheel.control.supervise.supervisor import Supervisor

_EXIT_BY_SIGNAL = 128  # as shells have it


async def run_services(services: Sequence[Service], log: Log) -> bool:
    """Run services until a signal; return False if one of them could not be kept running."""
    supervisor = Supervisor(services, log)
    with stopping_by_signals(supervisor, log, "the services are killed"):
        supervisor.start()
        supervisor.release()
        await supervisor.wait_stopping()
        await supervisor.stop()
    log.report("stopped", level="error" if supervisor.has_failed else "info")
    return not supervisor.has_failed


@contextmanager
def stopping_by_signals(supervisor: Supervisor, log: Log, at_once: str) -> Generator[None]:
    """Request a stop at SIGINT, SIGTERM or SIGHUP; kill all and end at a second SIGINT or SIGTERM."""
    loop, requested = asyncio.get_running_loop(), False

    def on_signal(number: signal.Signals) -> None:
        nonlocal requested
        if requested and number != signal.SIGHUP:  # a terminal that closes sends it beside others
            supervisor.kill()
            log.report(f"{number.name} again: {at_once}", level="warning")
            log.close()
            os._exit(_EXIT_BY_SIGNAL + number)
        if not requested:
            requested = True
            log.report(f"{number.name}: stopping in order; once more ends at once")
            supervisor.request_stop()

    # `nohup` and a shell's background jobs ignore some of them: that stays.
    heeded = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    for number in heeded:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)
