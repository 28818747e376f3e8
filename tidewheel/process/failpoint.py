"""Named points at which a test kills the process, to see that nothing is lost there.

`TIDEWHEEL_FAILPOINT=firing.before_commit:exit` ends the process by SIGKILL when it gets there; `…:exit:3` on the third
visit; several points are separated by commas. Without the variable a point costs one truth test.
"""

import os
import signal
import threading

# Every point there is: a test that names another one is a test of nothing, so `_parse` refuses it.
POINTS = frozenset(
    {
        "intake.received",
        "intake.before_commit",
        "intake.after_commit",
        "firing.locked",
        "firing.before_commit",
        "firing.after_commit",
        "draining.taken",
        "draining.locked",
        "draining.marked",
        "draining.written",
        "draining.before_commit",
        "draining.after_commit",
        "timing_out.before_commit",
        "timing_out.after_commit",
        "freeing.before_commit",
        "freeing.after_commit",
        "backfilling.before_commit",
        "backfilling.after_commit",
        "working.before_commit",
        "working.after_commit",
        "counting.before_commit",
        "removing.page",
        "deleting.before_commit",
        "deleting.after_commit",
        "archiving.before_manifest",
        "archiving.before_record",
        "restoring.begun",
        "restoring.request",
        "restoring.timers",
        "restoring.runs",
        "restoring.ends",
        "restoring.messages",
        "restoring.unknown",
        "restoring.open",
        "relay.read",
        "relay.produced",
        "relay.acknowledged",
        "relay.deleted",
        "claim.received",
        "claim.before_commit",
        "claim.after_commit",
        "claim.offsets_committed",
        "attempt.before_effect",
        "attempt.after_effect",
        "complete_in.held",
        "complete_in.written",
        "completion.before_commit",
        "completion.after_commit",
        "retry.before_commit",
        "retry.after_commit",
        "reap.before_commit",
        "reap.after_commit",
    }
)


def _parse(text: str) -> dict[str, int]:
    armed: dict[str, int] = {}
    for entry in filter(None, text.split(",")):
        name, _, rest = entry.partition(":")
        action, _, visit = rest.partition(":")
        if name not in POINTS or action != "exit":
            raise ValueError(f"TIDEWHEEL_FAILPOINT: {entry!r} is not `point:exit[:visit]` with one of {sorted(POINTS)}")
        armed[name] = int(visit or 1)
    return armed


_ARMED = _parse(os.environ.get("TIDEWHEEL_FAILPOINT", ""))
_LOCK = threading.Lock()


def failpoint(name: str) -> None:
    """Die here if the environment asks for it."""
    if _ARMED and name in _ARMED:
        _visit(name)


def _visit(name: str) -> None:
    with _LOCK:
        _ARMED[name] -= 1
        if _ARMED[name] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
