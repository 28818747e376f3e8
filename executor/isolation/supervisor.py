"""Start a worker process and outlive it (`python -m tidewheel.executor.isolation.supervisor`).

It leads the process group of the worker and of all processes that the worker starts, and only waits. If the worker
ends, it ends in the same way. If the executor ends, which closes a pipe, it kills the group. The worker itself could
not: a handler may hold the interpreter's lock for ever. It imports little, since each worker has its own supervisor.
"""

import os
import select
import signal
import sys
from importlib import import_module
from typing import NoReturn

_CHECK_SECONDS = 0.1  # between two checks on systems without pidfd_open


def main() -> NoReturn:
    """Run the supervisor; the arguments are the pipe that ends with the executor, and the worker's two."""
    life, incoming, outgoing = map(int, sys.argv[1:4])
    supervisor, worker = os.getpid(), os.fork()
    if worker == 0:
        os.close(life)
        import_module("tidewheel.executor.isolation.worker").main(incoming, outgoing, supervisor)
        sys.exit(1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the worker; the executor kills the group afterwards
    os.dup2(life, 0)
    os.closerange(1, max(life, incoming, outgoing) + 1)
    code = _end_of(worker)
    if code is None:
        os.killpg(0, signal.SIGKILL)
    elif code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(supervisor, -code)
    os._exit(1 if code is None or code < 0 else code)


def _end_of(worker: int) -> int | None:
    """Wait for the worker's exit code; return None if the executor ends before."""
    ended = [os.pidfd_open(worker)] if hasattr(os, "pidfd_open") else []
    while True:
        readable, _, _ = select.select([0, *ended], [], [], None if ended else _CHECK_SECONDS)
        done, status = os.waitpid(worker, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if 0 in readable:
            return None


if __name__ == "__main__":
    main()
