"""Edit jobs that are due every second at random, over Kafka and HTTP, and record requests and replies.

The choices come from a seed; the moments do not, for they depend on the machine. Half of the requests are aimed at an
instant of their job: they are sent some milliseconds before or after it.
"""

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from typing import cast

from tests.faults.edit_model import SECOND, Act, Fired, Grid, Standing, micros
from tests.faults.edit_oracle import Verdict, judge
from tests.fixtures.oracle import read_effects
from tests.fixtures.reader import Seen, TopicReader
from tests.fixtures.services import Fleet
from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.client import Client
from tidewheel.errors import InvalidInput, TidewheelError
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.values import format_timestamp
from tidewheel.nouns.jobs.model import Job
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import Reply, ReplyStatus, RunCompleted

_JOBS = 8
_LONGEST_BURST = 4
_PAUSES = (0.0, 0.0, 0.02, 0.1, 0.3, 0.8, 1.5, 3.0)  # seconds between the answer to one request and the next
_AIM_SECONDS = 0.015
_LOOK_SECONDS = 0.005
_ANSWER_SECONDS = 60.0
_COMPLETED_SECONDS = 20.0
_SOON = 2 * SECOND  # farther ahead than an answer is away
_FAR = 14 * SECOND
_FARTHEST_MOVES = (-3000, 8000)  # ms; back and forth, over other occurrences
_NEAREST_MOVE = 3 * SECOND // 10
_QUIET_SECONDS = 3.0  # several sweeps and polls: what would still come has come by then

# What a schedule is written as, and the grid that it means.
_SCHEDULES: tuple[tuple[object, Grid | None], ...] = (
    *(
        ({"interval": "1s", "anchor": f"2026-01-01T00:00:00.{phase:03}Z"}, Grid(phase * 1000, SECOND))
        for phase in (0, 0, 250, 500, 750)
    ),
    ({"cron": "* * * * * *"}, Grid(0, SECOND)),
    ({"cron": "* * * * * *", "timezone": "Asia/Kolkata"}, Grid(0, SECOND)),
    ({"cron": "*/2 * * * * *"}, Grid(0, 2 * SECOND)),
    ({"cron": "1-59/2 * * * * *", "timezone": "America/New_York"}, Grid(SECOND, 2 * SECOND)),
    ({"interval": "2s", "anchor": "2026-01-01T00:00:01.500Z"}, Grid(SECOND * 3 // 2, 2 * SECOND)),
    ("manual", None),
)
_REFUSED = {"cron": "* 61 * * * *"}


@dataclass
class Driven:
    """One job under edits, as the requests so far ought to have left it."""

    key: str
    standing: Standing = field(default_factory=Standing)
    acts: list[Act] = field(default_factory=list[Act])
    last: Mapping[str, object] = field(default_factory=dict[str, object])
    waiting: list[tuple[str, Act]] = field(default_factory=list[tuple[str, Act]])  # by request_id
    ready: float = 0.0


class RandomEdits:
    """The driver of one fleet."""

    def __init__(self, fleet: Fleet, client: Client, seed: int) -> None:
        self._fleet, self._client, self._random = fleet, client, Random(seed)  # noqa: S311 - reproducible on purpose
        self._clock = fleet.database.connection(autocommit=True)
        self._reader = TopicReader(fleet.kafka, [fleet.topics.replies, fleet.topics.completions])
        self._read = 0
        self._tokens = 0
        self._replies: dict[str, Reply] = {}
        self._fired: defaultdict[str, dict[str, tuple[str, Fired]]] = defaultdict(dict)
        self._jobs = [Driven(f"edited-{number}") for number in range(_JOBS)]
        self._never = threading.Event()
        self.problems: list[str] = []

    def drive(self, seconds: float) -> None:
        """Send requests for this time, then delete or pause every job, and wait until due runs complete."""
        end = monotonic_seconds() + seconds
        while monotonic_seconds() < end:
            self._look()
            for job in self._jobs:
                if not job.waiting and monotonic_seconds() >= job.ready:
                    self._act(job)
            self._never.wait(_LOOK_SECONDS)
        self._finish()

    def verdicts(self) -> list[Verdict]:
        """Return the end of each job, and the effects of its handlers."""
        done = self._effects()
        fired = {
            key: [replace(one, done=done.get(one.run_id, one.done)) for one in self._of(key)] for key in self._fired
        }
        return judge({job.key: job.acts for job in self._jobs}, fired)

    def close(self) -> None:
        """Let go of the broker."""
        self._reader.close()

    def _effects(self) -> dict[str, int]:
        """Return the time of each run's effect: one per run that succeeded, and no other."""
        done: dict[str, int] = {}
        succeeded = {one.run_id for key in self._fired for one in self._of(key) if one.status == "succeeded"}
        for effect in read_effects(self._fleet.effects):
            if effect.run_id in done or effect.run_id not in succeeded:
                self.problems.append(f"{effect.job_key}: {effect.run_id} took effect twice, or did not succeed")
            done[effect.run_id] = micros(effect.at)
        self.problems += [f"{run_id} succeeded without an effect" for run_id in succeeded - set(done)]
        return done

    # Asking.

    def _act(self, job: Driven) -> None:
        if self._random.random() < 0.5:
            self._ask_client(job)
        else:
            burst = self._random.randint(1, _LONGEST_BURST)
            for _ in range(burst):
                self._ask_kafka(job)
            self._fleet.flush()
        pause = self._random.choice(_PAUSES)
        job.ready = monotonic_seconds() + (self._edge(job, pause) if self._random.random() < 0.5 else pause)

    def _edge(self, job: Driven, pause: float) -> float:
        """Seconds until an instant of the job, a little less or more, that is not nearer than a pause."""
        grid = job.standing.grid
        if grid is None:
            return pause
        now = self._now()
        earliest = now + int(pause * SECOND)
        at = next(grid.within(earliest, earliest + 2 * grid.every))
        return (at - now) / SECOND + self._random.uniform(-_AIM_SECONDS, _AIM_SECONDS)

    def _ask_kafka(self, job: Driven) -> None:
        act, document = self._choose(job, {"skip": 2, "move": 3, "unskip": 2})
        act = replace(act, sent=self._now())
        job.waiting.append((self._fleet.ask(document, key=job.key), act))

    def _ask_client(self, job: Driven) -> None:
        act, document = self._choose(job, {})
        calls: Mapping[str, Callable[[], Job]] = {
            "submit": lambda: self._client.submit(cast("Mapping[str, object]", document["job"])),
            "pause": lambda: self._client.pause(job.key),
            "resume": lambda: self._client.resume(job.key),
            "delete": lambda: self._client.delete(job.key),
        }
        act = replace(act, sent=self._now())
        try:
            said = calls[act.kind]()
        except (InvalidInput, TidewheelError):
            job.acts.append(replace(act, answered=self._now(), accepted=False))
            return
        told = replace(act, answered=self._now(), unchanged=said.unchanged, version=said.version)
        job.acts.append(_with_next(told, said.next_run_at))

    def _choose(self, job: Driven, more: Mapping[str, int]) -> tuple[Act, dict[str, object]]:
        """A request that goes with what the job ought to be by then."""
        standing = job.standing
        now = self._now()
        said = [*standing.skipped, *(at for at, to in standing.moved if to > now + _SOON)]
        said = [at for at in said if at > now + _SOON]
        if standing.grid is None:
            more = {}
        elif not said:
            more = {kind: weight for kind, weight in more.items() if kind != "unskip"}
        if not standing.exists:
            kinds = {"submit": 20, "pause": 1, "resume": 1, "delete": 1}
        elif standing.paused:
            kinds = {"resume": 16, "submit": 5, "pause": 1, "delete": 1, **more}
        else:
            kinds = {"submit": 14, "pause": 4, "resume": 1, "delete": 1, **more}
        kind = self._random.choices([*kinds], [*kinds.values()])[0]
        document: dict[str, object] = {"type": f"job.{kind}", "key": job.key}
        act = Act(kind, 0)
        if kind == "submit":
            act, document = self._submit(job)
        elif kind in more:
            act = self._one_occurrence(kind, job.standing, now, said)
            document["at"] = _written(act.at)
            if act.to:
                document["to"] = _written(act.to)
        accepted, unchanged = standing.answer(act)
        if accepted and not unchanged:
            job.standing = standing.after(act)
        return act, document

    def _one_occurrence(self, kind: str, standing: Standing, now: int, said: list[int]) -> Act:
        """A request about an occurrence that is seconds ahead: within the lookahead, or beyond it."""
        if kind == "unskip":
            return Act(kind, 0, at=self._random.choice(said))
        assert standing.grid is not None
        coming = standing.grid.within(now + _SOON, now + _FAR)
        # Nor one that was moved ahead of its own instant, and has fired there or was passed over.
        at = self._random.choice([at for at in coming if at not in standing.skipped | dict(standing.moved).keys()])
        if kind == "skip":
            return Act(kind, 0, at=at)
        to = at + self._random.randint(*_FARTHEST_MOVES) * 1000
        return Act(kind, 0, at=at, to=to if to > now + _SOON and abs(to - at) >= _NEAREST_MOVE else at + _NEAREST_MOVE)

    def _submit(self, job: Driven) -> tuple[Act, dict[str, object]]:
        act, spec = self._definition(job)
        if act.fits and act.token != job.standing.token:
            job.last = spec
        return act, {"type": "job.submit", "job": {**spec, **({"paused": True} if act.paused else {})}}

    def _definition(self, job: Driven) -> tuple[Act, Mapping[str, object]]:
        chance = self._random.random()
        if chance < 0.1 and job.last:
            token = cast("int", cast("Mapping[str, object]", job.last["payload"])["token"])
            known = [act for act in (*job.acts, *(act for _, act in job.waiting)) if act.token == token]
            return replace(known[0], sent=0, answered=0, version=None, next_run_at=None, paused=False), job.last
        self._tokens += 1
        schedule, grid = self._random.choice(_SCHEDULES)
        if chance < 0.4 and job.last:
            schedule, grid = job.last["schedule"], job.standing.grid or self._grid_of(job.last["schedule"])
        act = Act("submit", 0, token=self._tokens, grid=grid, paused=self._random.random() < 0.1)
        if chance > 0.95:
            schedule, act = _REFUSED, replace(act, fits=False)
        spec = {
            "key": job.key,
            "schedule": schedule,
            "target": "note",
            "payload": {"token": act.token},
            "overlap": "allow_all",
        }
        return act, spec

    @staticmethod
    def _grid_of(schedule: object) -> Grid | None:
        return next(grid for known, grid in _SCHEDULES if known == schedule)

    # Being answered.

    def _look(self) -> None:
        self._reader.poll()
        for seen in self._reader.seen[self._read :]:
            if seen.topic == self._fleet.topics.replies:
                reply = decode(seen.value or b"", Reply)
                self._replies.setdefault(reply.request_id or "", reply)
            else:
                self._completed(seen)
        self._read = len(self._reader.seen)
        now = 0
        for job in self._jobs:
            while job.waiting and job.waiting[0][0] in self._replies:
                now = now or self._now()
                request_id, act = job.waiting.pop(0)
                job.acts.append(_answered(replace(act, answered=now), self._replies[request_id]))

    def _completed(self, seen: Seen) -> None:
        event = decode(seen.value or b"", RunCompleted)
        found = Fired(
            at=micros(event.scheduled_at),
            run_id=event.run_id,
            version=event.job_version,
            status=str(event.status),
            token=_token(event.result),
            reason=event.reason,
            done=micros(event.finished_at),
            left=0 if event.published_at is None else micros(event.published_at),
        )
        event_id, _ = self._fired[event.job_key].setdefault(event.run_id, (event.event_id, found))
        if event_id != event.event_id:
            self.problems.append(f"{event.job_key}: run {event.run_id} completed twice")

    def _of(self, key: str) -> list[Fired]:
        return [found for _, found in self._fired[key].values()]

    def _finish(self) -> None:
        self._fleet.until(self._all_answered, "every request is answered", seconds=_ANSWER_SECONDS)
        for number, job in enumerate(self._jobs):
            kind = "delete" if number % 2 else "pause"
            act = Act(kind, self._now())
            if job.standing.answer(act) == (True, False):
                said = (self._client.delete if number % 2 else self._client.pause)(job.key)
                job.acts.append(replace(act, answered=self._now(), version=said.version))
                job.standing = job.standing.after(act)
        # What is still missing then is lost, and the verdict will say so with the history around it.
        self._look_for(_COMPLETED_SECONDS, until=lambda: not self._missing())
        self._look_for(_QUIET_SECONDS)

    def _look_for(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        end = monotonic_seconds() + seconds
        while monotonic_seconds() < end and not until():
            self._look()

    def _all_answered(self) -> bool:
        self._look()
        return not any(job.waiting for job in self._jobs)

    def _missing(self) -> bool:
        return any(Verdict(job.key, job.acts, self._of(job.key)).missing() for job in self._jobs)

    def _now(self) -> int:
        """Return the database's clock."""
        row = self._clock.execute("SELECT tidewheel_now()").fetchone()
        assert row is not None
        return micros(cast("datetime", row[0]))


def _answered(act: Act, reply: Reply) -> Act:
    accepted = reply.status is ReplyStatus.ACCEPTED
    said = replace(act, accepted=accepted, unchanged=bool(reply.unchanged), version=reply.job_version)
    return _with_next(said, reply.next_run_at)


def _with_next(act: Act, at: datetime | None) -> Act:
    return replace(act, next_run_at=None if at is None else micros(at))


def _written(at: int) -> str:
    return format_timestamp(datetime.fromtimestamp(at // SECOND, UTC).replace(microsecond=at % SECOND))


def _token(result: bytes | None) -> object:
    return (as_object(json.loads(result or b"null")) or {}).get("token")
