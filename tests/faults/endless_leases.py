"""Handlers of the fault tests, for an executor that never looks at its leases: a mutant."""

from tests.faults.handlers import note as note
from tests.faults.handlers import note_process as note_process
from tests.faults.handlers import note_sync as note_sync
from tidewheel.executor.lease import Lease


def _never(lease: Lease) -> bool:
    return False


Lease.is_over = _never  # type: ignore[method-assign]
