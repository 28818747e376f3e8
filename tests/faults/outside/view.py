"""A history with its indexes, and the time that a fault may take."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from tests.faults.outside.due import Target, micros, targets
from tests.faults.outside.records import SECOND, Effect, Fault, History, Message, Operation

PROMPT = 10 * SECOND  # an occurrence that no fault touches starts this soon, on a machine that does other work too
RECORD = SECOND  # from a response to the record of its outcome
RECOVERY = 30 * SECOND  # and this soon after the end of a fault


class View:
    """A history with its indexes."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.operations = history.operations
        self.answered = [op for op in history.operations if op.answered is not None and op.accepted]

    @cached_property
    def targets(self) -> dict[str, dict[int, Target]]:
        """Every target by job and instant."""
        found = targets(self.operations, self.history.begun, self.history.ended)
        return {key: {target.at: target for target in mine} for key, mine in found.items()}

    @cached_property
    def completions(self) -> dict[str, Message]:
        """The first completion of each run."""
        found: dict[str, Message] = {}
        for message in self.of_kind("RunCompleted"):
            found.setdefault(message.value["run_id"], message)
        return found

    @cached_property
    def timer_runs(self) -> dict[tuple[str, int], list[str]]:
        """The runs of each occurrence, by job and instant."""
        found: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        for run_id, message in self.completions.items():
            if message.value["cause"] == "timer":
                found[message.value["job_key"], message.value["scheduled_at"]].append(run_id)
        return found

    @cached_property
    def effects(self) -> dict[str, list[Effect]]:
        """The effects of each run, in the order of their arrival."""
        found: defaultdict[str, list[Effect]] = defaultdict(list)
        for effect in self.history.effects:
            found[effect.run_id].append(effect)
        return found

    @cached_property
    def by_token(self) -> dict[str, list[Effect]]:
        """The calls with each task token."""
        found: defaultdict[str, list[Effect]] = defaultdict(list)
        for effect in self.history.effects:
            if effect.token:
                found[effect.token].append(effect)
        return found

    @cached_property
    def skips(self) -> dict[str, list[tuple[int, int, str, int]]]:
        """Recorded skips of each job: first and last instant, reason, number."""
        found: defaultdict[str, list[tuple[int, int, str, int]]] = defaultdict(list)
        seen: set[str] = set()
        for message in self.of_kind("LifecycleEvent"):
            event = message.value
            if event["type"].startswith("io.tidewheel.occurrence.skipped.") and event["event_id"] not in seen:
                seen.add(event["event_id"])
                detail = event["detail"]
                found[event["job_key"]].append(
                    (micros(detail["first_at"]), micros(detail["last_at"]), event["reason"], int(detail["occurrences"]))
                )
        return found

    @cached_property
    def triggers(self) -> dict[str, Operation]:
        """The accepted trigger of each run."""
        return {op.reply["run_id"]: op for op in self.answered if op.type == "job.trigger"}

    @cached_property
    def cancels(self) -> dict[str, Operation]:
        """The first accepted cancel of each run."""
        found: dict[str, Operation] = {}
        for op in self.answered:
            if op.type == "run.cancel":
                found.setdefault(op.request["run_id"], op)
        return found

    @cached_property
    def faults(self) -> list[Fault]:
        """The faults in the order of their injection."""
        return sorted(self.history.faults, key=lambda fault: fault.injected)

    @cached_property
    def windows(self) -> list[tuple[int, int]]:
        """Times in which a fault may still show, in order and without overlap."""
        found: list[tuple[int, int]] = []
        for fault in self.faults:
            end = max(fault.healed, fault.recovered or fault.healed) + RECOVERY
            if found and fault.injected <= found[-1][1]:
                found[-1] = (found[-1][0], max(found[-1][1], end))
            else:
                found.append((fault.injected, end))
        return found

    def touched(self, since: int, until: int) -> bool:
        """Return True if a fault may show between two instants."""
        return self._window(since, until) is not None

    def cut_off(self, at: int) -> bool:
        """Return True if a fault may have kept the outcome of that instant from its record."""
        return any(fault.injected <= at + RECORD and at <= fault.healed for fault in self.faults)

    def deadline(self, due: int) -> int:
        """Return the instant by which what is due then has to start.

        A fault that begins soon after `due` extends it. A later one does so only if the one before was not over: the
        driver waits for recovery between two faults.
        """
        end, reach = due + PROMPT, due + PROMPT
        for fault in self.faults:
            if fault.injected <= reach and fault.healed + RECOVERY >= due:
                end = max(end, fault.healed + RECOVERY)
                reach = max(reach, fault.healed + RECOVERY if fault.recovered is None else fault.recovered)
        return end

    def of_kind(self, kind: str) -> Iterator[Message]:
        """Yield the messages of one schema."""
        return (message for message in self.history.messages if message.kind == kind)

    def first_effect(self, run_id: str) -> Effect | None:
        """Return the first effect of a run."""
        return next(iter(self.effects.get(run_id, ())), None)

    def first_effects(self) -> Iterator[tuple[str, Target, Effect]]:
        """Yield the first effect of each target that has one."""
        for (key, at), runs in self.timer_runs.items():
            target, effect = self.targets.get(key, {}).get(at), self.first_effect(runs[0])
            if target is not None and effect is not None:
                yield key, target, effect

    def _window(self, since: int, until: int) -> tuple[int, int] | None:
        place = bisect_right(self.windows, (until, 1 << 62)) - 1
        return self.windows[place] if place >= 0 and self.windows[place][1] >= since else None
