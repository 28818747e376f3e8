"""Apply the effects that ends in users' own transactions have deferred (`transitions/after_end.py`)."""

import logging
from uuid import UUID

from tidewheel.errors import Unavailable
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Session, list_ids
from tidewheel.postgres.statements import Statements
from tidewheel.scheduler.set_aside import SetAside
from tidewheel.transitions.after_end import MAX_APPLIED, apply_deferred_effects
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.scheduler")

_FIND_DEFERRED_EFFECTS = Statements("tidewheel.scheduler")["find_deferred_effects"]


class DeferredEffects:
    """Applies deferred effects, `MAX_APPLIED` at a time, or one by one if one of them fails."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._failed = SetAside[UUID]()

    def step(self) -> int:
        """Apply some effects; return the number of ends."""
        left = self._failed.current()
        try:
            return self._session.within(apply_deferred_effects, self._installation, left=left)
        except (Unavailable, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - applying one at a time finds the one that fails
            _LOG.warning("applying deferred effects failed (%s); the scheduler applies them one by one", error)
        applied, columns = 0, {"limit": MAX_APPLIED, "left": uuids(left)}
        for run_id in self._session.within(list_ids, _FIND_DEFERRED_EFFECTS, columns):
            with self._failed.alone(run_id, "apply the deferred effects of run", run_id=str(run_id)):
                applied += self._session.within(apply_deferred_effects, self._installation, only=run_id)
        return applied
