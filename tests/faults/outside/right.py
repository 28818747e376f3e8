"""Made-up histories that are right, as an installation without an error leaves them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from uuid import UUID

from tests.faults.outside.due import Target, targets, text
from tests.faults.outside.records import SECOND, Effect, Fault, History, Message, Operation, Tables

BEGUN = 1_800_000_000 * SECOND
LEASE = 5 * SECOND
_MILLISECOND = SECOND // 1000


@dataclass
class Maker:
    """Makes one history, request by request and run by run."""

    length: int  # seconds that it takes
    faults: tuple[tuple[int, int], ...] = ()  # pairs of seconds: injected and healed
    operations: list[Operation] = field(default_factory=list[Operation])
    effects: list[Effect] = field(default_factory=list[Effect])
    messages: list[Message] = field(default_factory=list[Message])
    states: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        """Begin with empty topics."""
        self._ids = count(1)
        self._offsets: dict[tuple[str, int], int] = {}

    def new_id(self) -> str:
        """Return the id of the next run."""
        return str(UUID(int=next(self._ids)))

    def request(self, document: Mapping[str, Any], at: float, took: float | None, **reply: object) -> Operation:
        """Record one request, with its reply after `took` seconds unless that is None."""
        number = f"r-{len(self.operations)}"
        invoked = _at(at)
        answered = None if took is None else invoked + int(took * SECOND)
        whole = {
            "request_id": number,
            "status": "accepted",
            "run_id": None,
            "job_version": 1,
            "run_status": None,
            **reply,
        }
        place = self._put("requests", "Request", {**document, "request_id": number}, invoked)
        if answered is not None:
            self._put("replies", "Reply", whole, answered)
        self.operations.append(
            Operation(number, document, invoked, answered, reply=whole if answered else {}, place=place)
        )
        return self.operations[-1]

    def fire(self, key: str, at: int, start: int, *, attempts: tuple[int, ...] = (200,), cause: str = "timer") -> str:
        """Record one run: its attempts answer with these statuses, two seconds apart."""
        run_id, ended = self.new_id(), start
        for number, status in enumerate(attempts, 1):
            self._put("runs.standard", "RunRequest", {"run_id": run_id, "attempt": number}, start)
            self.effects.append(
                Effect(run_id, number, key, at, start, start + 3 * _MILLISECOND if status else None, status)
            )
            ended = start + 5 * _MILLISECOND
            start += 2 * SECOND + 10 * _MILLISECOND
        status = "succeeded" if attempts[-1] == 200 else "failed"
        self.end(run_id, key, at, status, attempt=len(attempts), cause=cause, ended=ended)
        return run_id

    def end(
        self,
        run_id: str,
        key: str,
        at: int,
        status: str,
        *,
        attempt: int = 0,
        cause: str = "timer",
        reason: str = "",
        ended: int = 0,
    ) -> None:
        """Record the end of a run."""
        value = {"run_id": run_id, "job_key": key, "scheduled_at": at, "status": status, "attempt": attempt}
        event = {"event_id": f"e-{run_id}", "cause": cause, "reason": reason or None, "sequence": 2, "started_at": at}
        event["finished_at"] = ended or at
        self._put("completions", "RunCompleted", {**value, **event}, at)
        self.states[run_id] = status
        if status in ("failed", "timed_out"):
            self._put("dead-letters", "DeadLetter", value, at)

    def skip(self, key: str, first: int, last: int, number: int) -> None:
        """Record instants that were passed over."""
        detail = {"first_at": text(first), "last_at": text(last), "occurrences": str(number)}
        value = {"event_id": f"s-{key}-{first}", "type": "io.tidewheel.occurrence.skipped.v1", "run_id": None}
        self._put("events", "LifecycleEvent", {**value, "job_key": key, "reason": "misfire", "detail": detail}, last)

    def due(self) -> Iterator[Target]:
        """Yield every target of the requests so far."""
        for mine in targets(self.operations, BEGUN, _at(self.length)).values():
            yield from mine

    def history(self) -> History:
        """Return it."""
        messages = tuple(self.messages)
        return History(
            operations=tuple(self.operations),
            effects=tuple(sorted(self.effects, key=lambda effect: effect.received)),
            messages=messages,
            again=messages,
            faults=tuple(Fault("crash", _at(a), _at(b), _at(b) + SECOND) for a, b in self.faults),
            tables=Tables(dict(self.states), {"outbox": 0}),
            begun=BEGUN,
            ended=_at(self.length),
            quiet=_at(self.length) + SECOND,
            lease=LEASE,
            misfire_after=3600 * SECOND,
        )

    def _put(self, topic: str, kind: str, value: Mapping[str, Any], at: int) -> tuple[str, int, int]:
        offset = self._offsets.get((topic, 0), 0)
        self._offsets[topic, 0] = offset + 1
        self.messages.append(Message(topic, 0, offset, at, "", f"{topic}-{offset}", kind, value))
        return topic, 0, offset


def job(key: str, schedule: object, **fields: object) -> dict[str, Any]:
    """Return a submit."""
    spec = {"overlap": "allow_all", "catch_up": "fire_all", "retry": {"max_attempts": 10, "initial": "2s"}, **fields}
    return {"type": "job.submit", "job": {"key": key, "schedule": schedule, **spec}}


def interval(seconds: int, offset: float = 0.0) -> dict[str, str]:
    """Return an interval with an anchor before the history."""
    return {"interval": f"{seconds}s", "anchor": text(BEGUN - 7200 * SECOND + int(offset * SECOND))}


def _at(seconds: float) -> int:
    return BEGUN + int(seconds * SECOND)


def plain() -> History:
    """A history with everything that a doctor may want to alter."""
    made = Maker(length=60, faults=((20, 23),))
    made.request(job("tick", interval(1)), 0.2, 0.1)
    made.request(job("edited", interval(2, 0.5)), 0.3, 0.1)
    made.request(job("task", "manual"), 0.4, 0.1)
    made.request(job("turns", interval(1), overlap="skip"), 0.4, 0.1)
    made.request({"type": "job.pause", "key": "edited"}, 31.2, 0.1)
    made.request({"type": "job.resume", "key": "edited"}, 40.2, 0.1)
    for number in range(4):
        made.request(
            {"type": "job.trigger", "key": "task", "delay": "2s"}, 5 + number, 0.1, run_id=str(UUID(int=number + 1))
        )
    cancelled = str(UUID(int=4))
    made.request({"type": "run.cancel", "run_id": cancelled}, 9, 0.1, run_id=cancelled, run_status="queued")
    for number in range(3):
        attempts = ((200,), (500, 200), (500, 500))[number]
        made.fire("task", _at(7.05 + number), _at(7.06 + number), attempts=attempts, cause="trigger")
    made.effects[0] = replace(made.effects[0], status=202, token="token")
    made.request({"type": "run.complete", "token": "token"}, 7.063, 0.1, run_id=made.effects[0].run_id)
    made.end(made.new_id(), "task", _at(10.05), "cancelled", cause="trigger")
    for number, target in enumerate(made.due()):
        if target.job_key == "turns" and number % 5 == 0:
            made.end(made.new_id(), "turns", target.at, "skipped", reason="overlap")
        elif target.certain:
            late = 4 * SECOND if _at(20) < target.at < _at(23) else 20 * _MILLISECOND
            made.fire(target.job_key, target.at, target.at + late)
    return made.history()
