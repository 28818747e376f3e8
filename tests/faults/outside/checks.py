"""The checks H1 to H10 of a history: pure functions of what was recorded outside.

Each check returns its anomalies with their evidence.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, cast

from tests.faults.outside.due import Target, text
from tests.faults.outside.records import SECOND, Effect, Message, Operation
from tests.faults.outside.view import PROMPT, RECOVERY, View

SETTLED = 60 * SECOND  # after the last fault nothing is left to do by then
STOPPED_SECONDS = 17.0  # a service ends itself 15 s after SIGTERM
LATE_COMMIT = SECOND  # between a row's reading of the clock and its commit; the relay reads later ones out of order
CALL = SECOND  # between a claim and the call that it leads to
_SHOWN = 600  # characters of a record in a message
ENDED = ("succeeded", "failed", "timed_out", "cancelled", "skipped")


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A promise that a history breaks."""

    check: str  # its number, such as `H1`
    what: str  # the promise, as this history breaks it
    evidence: tuple[object, ...] = ()

    def __str__(self) -> str:
        shown = (f"{record!s:.{_SHOWN}}" for record in self.evidence[:4])
        return "\n    ".join([f"{self.check} {self.what}", *shown])


def find_lost(view: View) -> Iterator[Anomaly]:
    """H1: each certain target has a run of its own that took effect, or a recorded reason why not."""
    for key, mine in view.targets.items():
        for target in mine.values():
            if target.certain and not _is_accounted(view, key, target):
                yield Anomaly("H1", f"{key}: the occurrence {text(target.at)} is lost", (target,))
        yield from _unmatched(view, key, mine)
    for op in view.answered:
        if op.type == "job.trigger" and op.reply["run_id"] not in view.completions:
            yield Anomaly("H1", f"{op.key}: the triggered run {op.reply['run_id']} never ended", (op,))


def find_extra(view: View) -> Iterator[Anomaly]:
    """H2, H7: each run belongs to a target or a trigger, and each occurrence has one run."""
    unknown = Counter(op.key for op in view.operations if op.type == "job.trigger" and op.answered is None)
    for run_id, message in view.completions.items():
        value = message.value
        key, at = value["job_key"], value["scheduled_at"]
        if value["cause"] == "timer":
            if at not in view.targets.get(key, {}):
                yield Anomaly("H2", f"{key}: {text(at)} is no occurrence of a definition then in force", (message,))
        elif run_id not in view.triggers:
            unknown[key] -= 1
            if unknown[key] < 0:
                yield Anomaly("H2", f"{key}: no request led to run {run_id}", (message,))
    for (key, at), runs in view.timer_runs.items():
        if len(runs) > 1:
            yield Anomaly("H2", f"{key}: the occurrence {text(at)} has {len(runs)} runs", tuple(runs))
    for run_id, found in view.effects.items():
        if run_id not in view.completions:
            yield Anomaly("H2", f"an effect of run {run_id}, which has no completion", tuple(found))


def find_duplicates(view: View) -> Iterator[Anomaly]:
    """H3: one terminal event for each run, and a repeated effect has a cause."""
    events: defaultdict[str, set[str]] = defaultdict(set)
    for message in view.of_kind("RunCompleted"):
        events[message.value["run_id"]].add(message.value["event_id"])
    for run_id, ids in events.items():
        if len(ids) > 1:
            yield Anomaly("H3", f"run {run_id} has {len(ids)} different completions", tuple(ids))
    for run_id, found in view.effects.items():
        for first, second in pairwise(found):
            if first.attempt == second.attempt:
                yield Anomaly("H3", f"run {run_id}: attempt {first.attempt} took effect twice", (first, second))
            elif first.succeeded and not view.touched(first.received, second.received):
                yield Anomaly("H3", f"run {run_id} was repeated without a cause", (first, second))


def find_early(view: View) -> Iterator[Anomaly]:
    """H4: nothing takes effect before its instant."""
    for effect in view.history.effects:
        trigger = view.triggers.get(effect.run_id)
        message = view.completions.get(effect.run_id)
        true = max(effect.scheduled_at, message.value["scheduled_at"] if message else 0)
        if trigger is not None:
            delay = int(str(trigger.request.get("delay", "0s")).removesuffix("s")) * SECOND
            true = max(true, trigger.invoked + delay)
        if effect.received < true:
            yield Anomaly(
                "H4", f"run {effect.run_id} took effect {(true - effect.received) / 1e6:.3f} s early", (effect,)
            )


def find_late(view: View) -> Iterator[Anomaly]:
    """H5: certain targets start promptly, or soon after the end of a fault.

    Runs of a job that may not overlap wait for each other: their lateness is the job's own.
    """
    for key, target, effect in view.first_effects():
        if target.spec.get("overlap") != "allow_all":
            continue
        late = effect.received - view.deadline(target.due)
        if target.certain and late > 0:
            after = (effect.received - target.due) / 1e6
            yield Anomaly("H5", f"{key}: {text(target.at)} took effect {after:.1f} s late", (effect,))
    for fault in view.history.faults:
        if fault.recovered is None or fault.recovered - fault.healed > RECOVERY:
            took = "never" if fault.recovered is None else f"after {(fault.recovered - fault.healed) / 1e6:.1f} s"
            yield Anomaly("H5", f"{fault.row}: recovered {took}", (fault,))


def find_attempts(view: View) -> Iterator[Anomaly]:
    """H6: attempts rise, do not overlap without a fault, keep their delay, and end."""
    for run_id, found in view.effects.items():
        spec = _spec_of(view, found[0].job_key)
        retry = spec.get("retry", {})
        delay = int(str(retry.get("initial", "2s")).removesuffix("s")) * SECOND
        for first, second in pairwise(found):
            if second.attempt < first.attempt:
                what = f"run {run_id}: attempt {second.attempt} took effect after attempt {first.attempt}"
                yield Anomaly("H6", what, (first, second))
            if view.touched(first.received, second.received):
                continue
            if first.answered is not None and second.received < first.answered:
                yield Anomaly(
                    "H6", f"run {run_id}: attempts {first.attempt} and {second.attempt} overlap", (first, second)
                )
            elif first.answered is not None and second.received < first.answered + delay:
                yield Anomaly("H6", f"run {run_id}: attempt {second.attempt} came before its delay", (first, second))
        failures = sum(effect.status >= 400 for effect in found)
        # A failure that a fault kept from its record is a lost attempt, which is not counted.
        failures -= sum(effect.status >= 400 and view.cut_off(effect.received) for effect in found[:-1])
        if failures > retry.get("max_attempts", 4):
            yield Anomaly("H6", f"run {run_id} failed {failures} times", tuple(found))
    first_asked: defaultdict[str, dict[int, Message]] = defaultdict(dict)
    for message in view.of_kind("RunRequest"):
        first_asked[message.value["run_id"]].setdefault(message.value["attempt"], message)
    for run_id, asked in first_asked.items():
        prompt = [number for number, message in asked.items() if not _is_late_row(view, message)]
        if prompt != sorted(prompt):
            yield Anomaly("H6", f"run {run_id}: messages request attempts in the order {list(asked)}")


def find_after_cancel(view: View) -> Iterator[Anomaly]:
    """H7: after the reply to a cancel no attempt starts, and the run ends cancelled unless it had ended."""
    for run_id, op in view.cancels.items():
        assert op.answered is not None
        found, message = op.reply.get("run_status"), view.completions.get(run_id)
        for effect in view.effects.get(run_id, ()):
            if effect.received > op.answered + CALL and not _claimed_before(view, effect, op.answered):
                yield Anomaly("H7", f"run {run_id} took effect after its cancel", (op, effect))
        if message is not None and found not in ENDED and message.value["status"] != "cancelled":
            yield Anomaly("H7", f"run {run_id} ended {message.value['status']} after its cancel", (op, message))


def find_torn_topics(view: View) -> Iterator[Anomaly]:
    """H8: topics are read twice alike, hold what was acknowledged, and agree with the table."""
    again = {_place(message): message.digest for message in view.history.again}
    there: dict[tuple[str, int, int], Message] = {}
    expected: defaultdict[tuple[str, int], int] = defaultdict(int)
    for message in sorted(view.history.messages, key=_place):
        there[_place(message)] = message
        if again.get(_place(message)) != message.digest:
            yield Anomaly("H8", "a second reading found another message", (message,))
        if message.offset + 1 == expected[message.topic, message.partition]:
            continue  # a broker with a full disk has written it twice; the digest is that of the same message
        if message.offset != expected[message.topic, message.partition]:
            yield Anomaly("H8", f"a gap before offset {message.offset}", (message,))
        expected[message.topic, message.partition] = message.offset + 1
    for op in view.operations:
        if op.place is not None and (op.place not in there or there[op.place].value.get("request_id") != op.id):
            yield Anomaly("H8", f"the acknowledged request {op.id} is not on its topic", (op,))
    yield from _wrong_replies(view)
    ended = {run for run, state in view.history.tables.states.items() if state in ENDED}
    for run_id in sorted(ended ^ view.completions.keys()):
        where = "the topic" if run_id in view.completions else "the table"
        yield Anomaly("H8", f"the end of run {run_id} is on {where} alone", (view.completions.get(run_id),))
    letters = {message.value["run_id"] for message in view.of_kind("DeadLetter")}
    dead = {run for run, message in view.completions.items() if message.value["status"] in ("failed", "timed_out")}
    for run_id in sorted(letters ^ dead):
        yield Anomaly("H8", f"run {run_id} has {'a' if run_id in letters else 'no'} dead letter")
    last: dict[str, int] = {}
    seen: set[str] = set()
    for message in sorted(view.history.messages, key=_place):
        run_id, event_id = message.value.get("run_id"), message.value.get("event_id")
        if message.kind in ("RunCompleted", "LifecycleEvent") and run_id and event_id and event_id not in seen:
            seen.add(event_id)
            if message.value["sequence"] < last.get(run_id, 0):
                yield Anomaly("H8", f"run {run_id}: an event is out of order", (message,))
            last[run_id] = message.value["sequence"]


def find_wrong_outcomes(view: View) -> Iterator[Anomaly]:
    """H9: table, event and the target's own answer agree."""
    for run_id, message in view.completions.items():
        status, attempt = message.value["status"], message.value["attempt"]
        state = view.history.tables.states.get(run_id)
        if state is not None and state != status:
            yield Anomaly("H9", f"run {run_id} is {state} in the table, {status} on the topic", (message,))
        found = view.effects.get(run_id, [])
        last = next((effect for effect in found if effect.attempt == attempt), None)
        if status == "succeeded" and (last is None or not last.succeeded):
            yield Anomaly("H9", f"run {run_id} succeeded without its target's success", (message, *found))
        if status == "succeeded" and last is not None and message.value["finished_at"] < (last.answered or 0):
            yield Anomaly("H9", f"run {run_id} ended in attempt {attempt} before the answer to it", (message, *found))
        if status == "failed" and last is not None and last.succeeded:
            yield Anomaly("H9", f"run {run_id} failed after its target's success", (message, *found))
        if found and max(effect.attempt for effect in found) > attempt:
            yield Anomaly(
                "H9", f"run {run_id} ended in attempt {attempt}, and a later one took effect", (message, *found)
            )
    for op in view.answered:
        if op.type == "run.complete":
            yield from _wrong_completion(view, op)
    for effect in view.history.effects:
        if not effect.genuine:
            yield Anomaly("H9", f"run {effect.run_id}: a call with a wrong body or signature", (effect,))


def find_stuck(view: View) -> Iterator[Anomaly]:
    """H10: soon after the last fault nothing is left to do."""
    history = view.history
    healed = max((fault.healed for fault in history.faults), default=history.ended)
    if history.quiet is None or history.quiet > max(healed, history.ended) + SETTLED:
        yield Anomaly("H10", "work was left after the last fault", (history.tables.left, history.tables.lag))
    for table, rows in history.tables.left.items():
        if rows:
            yield Anomaly("H10", f"{table} has {rows} rows left")
    if history.tables.lag:
        yield Anomaly("H10", f"{history.tables.lag} messages were never taken")
    for fault in history.faults:
        for name, (seconds, code) in fault.detail.get("stopped", {}).items():
            if seconds > STOPPED_SECONDS or code:
                yield Anomaly("H10", f"{fault.row}: {name} ended after {seconds:g} s with exit code {code:g}", (fault,))
        if fault.detail.get("exits"):
            yield Anomaly("H10", f"{fault.row}: {fault.detail['exits']} ended by themselves", (fault,))
    for op in view.operations:
        if op.answered is None and op.place is not None:
            yield Anomaly("H10", f"request {op.id} was never answered", (op,))


def find_misfires(view: View) -> Iterator[Anomaly]:
    """H1 of downtime: `catch_up` decides what is missed, and records what it passes over."""
    for key, mine in view.targets.items():
        certain = sorted(target.at for target in mine.values() if target.certain)
        passed = [at for at in certain if _skip_of(view, key, at, "misfire")]
        if not passed:
            continue
        policy = _spec_of(view, key).get("catch_up", "fire_once")
        if policy == "fire_all":
            yield Anomaly(
                "H1", f"{key}: {len(passed)} occurrences were passed over, and all have to fire", (*passed[:3],)
            )
        for at in passed:
            if (key, at) in view.timer_runs:
                yield Anomaly(
                    "H2", f"{key}: {text(at)} is recorded as passed over, and fired", (*view.timer_runs[key, at],)
                )
            if not view.touched(at, at + view.history.misfire_after):
                yield Anomaly("H1", f"{key}: {text(at)} was passed over without a fault")
        for first, last, reason, occurrences in view.skips[key]:
            if reason != "misfire":
                continue
            inside = [target for target in mine.values() if first <= target.at <= last]
            if len(inside) != occurrences:
                yield Anomaly("H1", f"{key}: a span of {occurrences} passed over has {len(inside)} occurrences")
            after = next((at for at in certain if at > last), None)
            if policy == "fire_once" and after is not None and (key, after) not in view.timer_runs:
                yield Anomaly("H1", f"{key}: of those missed, {text(after)}, the latest, did not fire")


CHECKS: tuple[Callable[[View], Iterable[Anomaly]], ...] = (
    find_lost,
    find_extra,
    find_duplicates,
    find_early,
    find_late,
    find_attempts,
    find_after_cancel,
    find_torn_topics,
    find_wrong_outcomes,
    find_stuck,
    find_misfires,
)


def _is_accounted(view: View, key: str, target: Target) -> bool:
    """Return True if a target fired, or something that may take its place is recorded."""
    for run_id in view.timer_runs.get((key, target.at), ()):
        status, reason = (view.completions[run_id].value[name] for name in ("status", "reason"))
        if view.effects.get(run_id):
            return True
        if status == "skipped" and reason == "overlap" and target.spec.get("overlap") != "allow_all":
            return True
        if status == "cancelled" and reason == "job_deleted" and target.recalled:
            return True
    return _skip_of(view, key, target.at, "misfire") and target.spec.get("catch_up") != "fire_all"


def _unmatched(view: View, key: str, mine: Mapping[int, Target]) -> Iterator[Anomaly]:
    """Match starts and targets by their times alone, as a checker that trusts no label."""
    specs = [target.spec for target in mine.values()]
    if any(spec.get("overlap") != "allow_all" or spec.get("catch_up") != "fire_all" for spec in specs):
        return
    if any(target.recalled for target in mine.values()):
        return
    runs = [run for (job, _), found in view.timer_runs.items() if job == key for run in found]
    starts = sorted(effect.received for run in runs if (effect := view.first_effect(run)) is not None)
    windows = [(target.at, view.deadline(target.due)) for target in mine.values() if target.certain]
    lost = len(windows) - match(starts, windows)
    if lost:
        yield Anomaly("H1", f"{key}: {lost} of {len(windows)} certain targets match no start by their times")
    windows = [(target.at, view.deadline(target.due)) for target in mine.values()]
    extra = len(starts) - match(starts, windows)
    if extra:
        yield Anomaly("H2", f"{key}: {extra} of {len(starts)} starts match no target by their times")


def match(starts: Sequence[int], windows: Sequence[tuple[int, int]]) -> int:
    """Return the most pairs of a start and a window around it; each is used once.

    Taking the window that ends first is optimal for intervals. Source: Glover, "Maximum matching in a convex bipartite
    graph", 1967.
    """
    coming, pairs = sorted(windows, reverse=True), 0
    held: list[int] = []
    for start in sorted(starts):
        while coming and coming[-1][0] <= start:
            heappush(held, coming.pop()[1])
        while held and held[0] < start:
            heappop(held)
        if held:
            heappop(held)
            pairs += 1
    return pairs


def _wrong_replies(view: View) -> Iterator[Anomaly]:
    replies: defaultdict[str, set[tuple[object, ...]]] = defaultdict(set)
    for message in view.of_kind("Reply"):
        value = message.value
        replies[value["request_id"]].add((value["status"], value["run_id"], value["job_version"], value["run_status"]))
    for request_id, found in replies.items():
        if len(found) > 1:
            yield Anomaly("H8", f"request {request_id} has {len(found)} different replies", tuple(found))


def _is_late_row(view: View, message: Message) -> bool:
    """Return True if a fault may have held the row's transaction open after its reading of the clock.

    The relay finds such a row behind its marks, after later ones. Source: docs/adr/0004.
    """
    written = message.value.get("publish_at")
    if written is None or message.at < written + LATE_COMMIT:
        return False
    return any(
        fault.detail.get("holds_commits") and fault.injected - PROMPT <= written <= fault.healed + LATE_COMMIT
        for fault in view.history.faults
    )


def _wrong_completion(view: View, op: Operation) -> Iterator[Anomaly]:
    """Compare an accepted completion by a task token with the end of its run."""
    for effect in view.by_token.get(op.request["token"], ()):
        message = view.completions.get(effect.run_id)
        ended = (message.value["status"], message.value["attempt"]) if message is not None else None
        if ended != ("succeeded", effect.attempt) or (message and message.value["finished_at"] < op.invoked):
            what = f"run {effect.run_id} ended as {ended}; attempt {effect.attempt} was completed by its token"
            yield Anomaly("H9", what, (op, message, effect))


def _claimed_before(view: View, effect: Effect, at: int) -> bool:
    """Return True if a completion shows that the attempt was claimed before an instant."""
    message = view.completions.get(effect.run_id)
    if message is None or message.value["attempt"] != effect.attempt or message.value["started_at"] is None:
        return False
    return message.value["started_at"] <= at


def _skip_of(view: View, key: str, at: int, reason: str) -> bool:
    return any(first <= at <= last and why == reason for first, last, why, _ in view.skips.get(key, ()))


def _spec_of(view: View, key: str) -> Mapping[str, Any]:
    for op in view.operations:
        if op.type == "job.submit" and op.key == key:
            return cast("Mapping[str, Any]", op.request["job"])
    return {}


def _place(message: Message) -> tuple[str, int, int]:
    return message.topic, message.partition, message.offset
