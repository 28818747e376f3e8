"""`tidewheel run`: services of an installation as one unit."""

from collections.abc import Sequence

from tidewheel.control.supervise.log import Log
from tidewheel.control.supervise.process import Service
from tidewheel.control.supervise.signals import stopping_by_signals
from tidewheel.control.supervise.supervisor import Supervisor


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
