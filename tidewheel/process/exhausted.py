"""End a process that can start no thread or has no memory left: half a service is worse than none.

Such a process goes on by its fall-backs, logs the same error several times a second, and may not even stop on a signal.
Its supervisor starts another one.
"""

import logging
import os
import threading
from contextlib import suppress
from typing import Final, NoReturn

_LOG = logging.getLogger("tidewheel.process")

EXIT_CODE: Final = 71
"""Source: sysexits.h, EX_OSERR: the system cannot fork or create a resource."""

_SIGNS: Final = (
    "can't start new thread",  # Source: CPython, _threadmodule.c
    "Unable to create broker thread",  # Source: librdkafka, rdkafka_broker.c
    "Failed to create thread",  # Source: librdkafka, rdkafka.c
)
_ending = threading.Lock()


def is_exhausted(error: BaseException | str) -> bool:
    """Return True if an error means that the process has no memory or no thread left."""
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in _SIGNS)


def end_exhausted_process(reason: BaseException | str) -> NoReturn:
    """Log one line and end the process with `EXIT_CODE`; from any thread."""
    if not _ending.acquire(blocking=False):
        threading.Event().wait()  # for another thread, which is ending the process
    with suppress(Exception):  # that line may need memory too
        text = "out of memory or threads (%s); the process ends with code %d: raise its limits, or find the leak"
        _LOG.critical(text, str(reason) or type(reason).__name__, EXIT_CODE)
        logging.shutdown()
    os._exit(EXIT_CODE)
