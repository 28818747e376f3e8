"""A history, put in order for looking things up. Pure."""

from collections import defaultdict
from datetime import timedelta
from functools import cached_property

from tidewheel.control.demo.history import Call, History
from tidewheel.schemas.generated.records import RunCompleted

# The longest attempt of the file takes 1.5 s; the rest is room for its end to be written on a slow machine. An older
# attempt of the executor that was killed had ended before, so the kill explains nothing about it.
_KILL_REACH = timedelta(seconds=6)


class Seen:
    """The runs, calls and effects of a history, each by its run."""

    def __init__(self, history: History) -> None:
        self.history = history

    @cached_property
    def runs(self) -> dict[str, RunCompleted]:
        """The first completion event of each run."""
        found: dict[str, RunCompleted] = {}
        for event in self.history.completions:
            found.setdefault(event.run_id, event)
        return found

    @cached_property
    def runs_of(self) -> dict[str, list[RunCompleted]]:
        """The runs of each job."""
        found: defaultdict[str, list[RunCompleted]] = defaultdict(list)
        for run in self.runs.values():
            found[run.job_key].append(run)
        return found

    @cached_property
    def calls(self) -> dict[str, list[Call]]:
        """The calls of each run, in the order they arrived."""
        found: defaultdict[str, list[Call]] = defaultdict(list)
        for call in sorted(self.history.calls, key=lambda call: call.arrived_at):
            found[call.run_id].append(call)
        return dict(found)

    @cached_property
    def effects(self) -> dict[str, list[Call]]:
        """The calls of each run that took effect; runs without one are left out."""
        found = {run: [call for call in calls if call.effective] for run, calls in self.calls.items()}
        return {run: calls for run, calls in found.items() if calls}

    def ended_by_kill(self, call: Call) -> bool:
        """Whether a call came from the executor that was killed, so shortly before that its end may be unwritten."""
        kill = self.history.kill
        return kill is not None and call.pid == kill.pid and kill.at - _KILL_REACH <= call.arrived_at <= kill.at
