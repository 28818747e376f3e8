"""A batch runs its jobs once each after their parents, and triggers jobs at its failure and its end."""

import random
from collections.abc import Mapping
from datetime import timedelta
from typing import cast
from uuid import UUID

import pytest

from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.transitions.graphs import Chance, assert_nothing_left, change, changed, drain_some, end_some, play
from tidewheel.errors import Refused
from tidewheel.runs import RunState
from tidewheel.scheduler.cancels import PendingCancels
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.transitions.parents import read_parents

_CALLED = ("succeeded", "failed", "finished")
ON = {name: {"key": "called", "payload": {"order": 7}} for name in _CALLED}


def send(database: Database, kind: str, **fields: object) -> Reply:
    [reply] = database.apply_batch({"type": f"batch.{kind}", **fields})
    return reply


def started(database: Database, runs: object, **fields: object) -> UUID:
    reply = send(database, "submit", runs=runs, **fields)
    assert reply.status is ReplyStatus.ACCEPTED, reply.errors
    return UUID(reply.batch_id)


def refused(reply: Reply) -> tuple[str, str]:
    assert reply.status is ReplyStatus.REJECTED
    return reply.errors[0].path, reply.errors[0].problem


def called(database: Database) -> list[tuple[str, object]]:
    """Return the triggers in the outbox, each with the name of its callback, and their payload."""
    return [(one["request_id"].split("/")[2], one["payload"]) for one in database.own_requests()]


def states(database: Database, batch: UUID) -> dict[str, str]:
    rows = database.rows(
        "SELECT b.ref, r.state FROM batch_runs b JOIN runs r USING (run_id) WHERE b.batch_id = %s", [batch]
    )
    return dict(rows)


def of(*refs: str, key: str = "job") -> list[dict[str, object]]:
    return [{"ref": ref, "key": key} for ref in refs]


@pytest.fixture
def jobs(database: Database) -> Database:
    database.submit(overlap="allow_all")
    database.submit("called")
    return database


def test_a_batch_runs_each_job_once_and_calls_back_at_its_end(jobs: Database) -> None:
    batch = started(jobs, [{"ref": "a", "key": "job", "payload": {"n": 1}}, *of("b")], on=ON)
    assert [one.payload for one in jobs.requests()] == [b'{"n":1}', None]
    play(jobs)
    assert states(jobs, batch) == {"a": "succeeded", "b": "succeeded"}
    facts = {"batch_id": str(batch), "total": 2, "succeeded": 2, "failed": 0, "first_failed_run_id": None}
    assert called(jobs) == [("succeeded", {"order": 7, **facts}), ("finished", {"order": 7, **facts})]
    assert_nothing_left(jobs)


def test_the_first_failure_is_called_once_and_the_end_once(jobs: Database) -> None:
    """The figures of the design: 10,000 runs, 3 of which fail; here 1,000 for the time of a test."""
    jobs.submit("bad", overlap="allow_all", retry={"max_attempts": 1})
    runs = [{"ref": str(n), "key": "bad" if n in {7, 300, 999} else "job"} for n in range(1000)]
    batch = started(jobs, runs, on=ON)
    play(jobs, lambda key: RunState.FAILED if key == "bad" else RunState.SUCCEEDED)
    [(which, payload), (last, end)] = called(jobs)
    assert (which, last) == ("failed", "finished")
    assert isinstance(payload, Mapping)
    assert isinstance(end, Mapping)
    assert (end["total"], end["succeeded"], end["failed"]) == (1000, 997, 3)
    assert payload["first_failed_run_id"] == end["first_failed_run_id"]
    assert jobs.rows("SELECT state, pending, failed FROM workflows") == [("failed", 0, 3)]
    assert_nothing_left(jobs)
    assert batch


CHAIN: list[dict[str, object]] = [
    *of("a"),
    {"ref": "b", "key": "job", "after": ["a"]},
    {"ref": "c", "key": "bad", "after": ["a"], "payload": {"c": 3}},
    {"ref": "d", "key": "job", "after": ["b", "c"]},
    {"ref": "e", "key": "job", "after": ["b", {"ref": "c", "when": "failure"}]},
    {"ref": "f", "key": "job", "after": {"ref": "d", "when": "always"}},
]
CHAIN[-1]["after"] = [CHAIN[-1]["after"]]


def test_random_batches_end_as_their_parents_say_under_rollbacks(jobs: Database) -> None:
    """Then a resume, in which no run fails, ends likewise."""
    draws = random.Random(5)  # noqa: S311 - a test's draws
    jobs.submit("bad", overlap="allow_all", retry={"max_attempts": 1})
    runs: list[dict[str, object]] = []
    expected: dict[str, str] = {}
    meets = {"success": {"succeeded"}, "failure": {"failed"}, "always": {"succeeded", "failed", "skipped"}}
    for n in range(60):
        parents = [
            {"ref": str(one), "when": draws.choice(list(meets))}
            for one in draws.sample(range(n), min(n, draws.randrange(4)))
        ]
        key = draws.choice(["job", "job", "bad"])
        runs.append({"ref": str(n), "key": key, "after": parents})
        met = all(expected[one["ref"]] in meets[one["when"]] for one in parents)
        expected[str(n)] = ("failed" if key == "bad" else "succeeded") if met else "skipped"
    parents_of = {str(run["ref"]): cast("list[dict[str, str]]", run["after"]) for run in runs}
    draws.shuffle(runs)
    batch = started(jobs, runs, on=ON)
    chance = Chance(draws, 0.3)
    failing = {"bad"}

    def play_on() -> None:
        def decide(key: str) -> RunState:
            return RunState.FAILED if key in failing else RunState.SUCCEEDED

        def rests() -> bool:
            """A drain may have postponed releases by an instant."""
            while end_some(jobs, decide, chance, 7) + drain_some(jobs, chance, children=5):
                pass
            return not jobs.value(
                "SELECT EXISTS (TABLE releases) OR EXISTS (SELECT FROM job_runs WHERE state = 'queued')"
            )

        until(rests, "the batch rests")
        assert states(jobs, batch) == expected
        assert_nothing_left(jobs)

    play_on()
    assert chance.aborted > 3
    assert [which for which, _ in called(jobs)] == ["failed", "finished"]
    failing.clear()
    again: set[str] = set()
    for ref, parents in parents_of.items():
        beneath = any(one["ref"] in again for one in parents) and expected[ref] != "succeeded"
        if expected[ref] == "failed" or beneath:
            again.add(ref)
            met = all(expected[one["ref"]] in meets[one["when"]] for one in parents)
            expected[ref] = "succeeded" if met else "skipped"
    assert changed(jobs, "resume", batch)
    play_on()
    assert jobs.rows("SELECT count(*) FROM runs WHERE generation = 1") == [(len(again),)]


def test_a_run_starts_its_delay_after_the_end_of_its_parents(clocked: ClockedDatabase) -> None:
    clocked.submit(overlap="allow_all")
    clocked.stop_clock()
    batch = started(clocked, [*of("a"), {"ref": "b", "key": "job", "after": ["a"], "delay": "1h"}], open=True)
    clocked.advance(timedelta(minutes=7))
    play(clocked)
    due = clocked.now() + timedelta(hours=1)
    assert clocked.rows("SELECT state, publish_at FROM job_runs") == [("queued", due)]
    clocked.advance(timedelta(minutes=30))
    send(clocked, "add", batch_id=str(batch), runs=[{"ref": "c", "key": "job", "after": ["a"], "delay": "1h"}])
    play(clocked)
    assert states(clocked, batch) == {"a": "succeeded", "b": "queued", "c": "queued"}
    clocked.advance(timedelta(minutes=30))
    play(clocked)
    assert states(clocked, batch) == {"a": "succeeded", "b": "succeeded", "c": "queued"}, "its parent had ended before"
    clocked.advance(timedelta(minutes=30))
    play(clocked)
    assert states(clocked, batch)["c"] == "succeeded"
    send(clocked, "close", batch_id=str(batch))
    assert_nothing_left(clocked)


def test_resume_runs_the_failed_part_of_a_batch_again(jobs: Database) -> None:
    """Each generation calls back, and repeated runs have their payloads.

    Runs that succeeded stay, also those of a `failure` branch.
    """
    jobs.submit("bad", overlap="allow_all", retry={"max_attempts": 1})
    batch = started(jobs, CHAIN, on=ON)
    assert states(jobs, batch) == {"a": "queued", **dict.fromkeys("bcdef", "blocked")}

    def fail_bad(key: str) -> RunState:
        return RunState.FAILED if key == "bad" else RunState.SUCCEEDED

    play(jobs, fail_bad)
    first = dict(jobs.rows("SELECT ref, run_id FROM batch_runs"))
    assert changed(jobs, "resume", batch)
    assert not changed(jobs, "resume", batch), "it is open"
    again = jobs.value("SELECT run_id FROM batch_runs WHERE ref = 'c'")
    assert jobs.rows("SELECT run_id, redriven_run_id FROM dead_letters") == [(first["c"], again)]
    assert states(jobs, batch) == {**dict.fromkeys("abef", "succeeded"), "c": "queued", "d": "blocked"}
    play(jobs, fail_bad)
    assert states(jobs, batch) == {**dict.fromkeys("abef", "succeeded"), "c": "failed", "d": "skipped"}
    assert jobs.rows("SELECT state, generation, pending, failed FROM workflows") == [("failed", 1, 0, 1)]
    assert changed(jobs, "resume", batch)
    latest = dict(jobs.rows("SELECT ref, run_id FROM batch_runs"))
    parents = {one.key: one.run_id for one in jobs.within(read_parents, latest["d"])}
    assert parents == {"b": first["b"], "c": latest["c"]}
    play(jobs)
    assert set(states(jobs, batch).values()) == {"succeeded"}
    assert {ref for ref in first if first[ref] != latest[ref]} == {"c", "d"}
    assert [one.payload for one in jobs.requests()].count(b'{"c":3}') == 3
    calls = called(jobs)
    assert [which for which, _ in calls] == ["failed", "finished"] * 2 + ["succeeded", "finished"]
    failures = [cast("dict[str, object]", facts)["first_failed_run_id"] for _, facts in calls]
    assert failures[0] == failures[1] == str(first["c"])
    assert failures[2] == failures[3] != failures[0]
    facts = {"batch_id": str(batch), "total": 6, "succeeded": 6, "failed": 0, "first_failed_run_id": None}
    assert calls[-1][1] == {"order": 7, **facts}
    assert_nothing_left(jobs)
    nothing = "no run of the batch failed or was cancelled"
    assert refused(change(jobs, "resume", batch)) == ("run_id", nothing)


def test_resume_of_a_cancelled_batch_and_what_it_refuses(jobs: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.submit("gone", overlap="allow_all", payload="first")
    runs = [*of("a"), {"ref": "b", "key": "gone", "after": ["a"], "payload": 7}, *of("c", key="gone")]
    batch = started(jobs, runs, on=ON, open=True)
    assert changed(jobs, "cancel", batch)
    assert refused(change(jobs, "resume", batch)) == ("run_id", "the occurrence is being cancelled")
    PendingCancels(jobs.session(), jobs.installation).step()
    play(jobs)
    assert set(states(jobs, batch).values()) == {"cancelled"}
    jobs.apply_batch({"type": "job.delete", "key": "gone"})
    assert refused(change(jobs, "resume", batch)) == ("run_id", "the job of run 'c' is deleted")
    jobs.submit("gone", overlap="allow_all", payload="second")
    for limit, problem in (("MAX_RUNS", "3 runs would run again"), ("_MAX_READ", "the batch has 3 runs")):
        monkeypatch.setattr(f"tidewheel.transitions.batch_resume.{limit}", 2)
        path, text = refused(change(jobs, "resume", batch))
        assert (path, problem in text) == ("run_id", True)
    monkeypatch.undo()
    assert changed(jobs, "resume", batch)
    play(jobs)
    assert set(states(jobs, batch).values()) == {"succeeded"}, "it ends though it was open: the cancel has closed it"
    payloads = [one.payload for one in jobs.requests()]
    assert (payloads.count(b"7"), payloads.count(b'"first"')) == (1, 1), "those of the versions that they ran with"
    assert [which for which, _ in called(jobs)] == ["finished", "succeeded", "finished"]
    assert_nothing_left(jobs)
    jobs.execute("DELETE FROM finished_runs WHERE job_id = (SELECT job_id FROM jobs WHERE key = 'gone')")
    assert refused(change(jobs, "resume", batch)) == ("run_id", "runs of the batch are no longer stored")


def test_runs_of_an_ordered_job_start_one_after_another(jobs: Database) -> None:
    jobs.submit("line", ordering_key="k")
    batch = started(jobs, of("a", "b", key="line"))
    assert states(jobs, batch) == {"a": "queued", "b": "buffered"}
    play(jobs)
    assert states(jobs, batch) == {"a": "succeeded", "b": "succeeded"}
    assert_nothing_left(jobs)
    path, problem = refused(send(jobs, "submit", runs=[*of("a"), {"ref": "b", "key": "line", "after": ["a"]}]))
    assert (path, "has an ordering_key" in problem) == ("runs.1.after", True)


def test_what_a_batch_refuses(jobs: Database) -> None:
    for size, problem in ((0, "is empty"), (10_001, "there are 10001 runs")):
        with pytest.raises(Refused) as error:
            send(jobs, "submit", runs=of("a") * size)
        assert (error.value.errors[0].path, error.value.errors[0].problem) == ("runs", problem)
    assert refused(send(jobs, "submit", runs=[*of("a"), {"ref": "b", "key": "gone"}])) == (
        "runs.1.key",
        "tenant 'default' has no job 'gone'",
    )
    on = {"failed": {"key": "gone"}}
    assert refused(send(jobs, "submit", runs=of("a"), on=on))[0] == "on.failed.key"
    batch = started(jobs, of("a"))
    assert refused(send(jobs, "add", batch_id=str(batch), runs=of("b"))) == ("from_run_id", "the batch is closed")
    assert refused(send(jobs, "add", batch_id=str(UUID(int=7)), runs=of("b")))[0] == "batch_id"
    outside = jobs.trigger()
    again = send(jobs, "add", batch_id=str(batch), from_run_id=str(outside), runs=of("b"))
    assert refused(again)[0] == "from_run_id"
    play(jobs)
    assert refused(send(jobs, "add", batch_id=str(batch), runs=of("b"))) == (
        "batch_id",
        "the batch has already ended as succeeded",
    )
    assert jobs.count("batches") == jobs.count("batch_runs") == 1


def test_a_run_adds_runs_until_its_end_is_drained(jobs: Database) -> None:
    """A repeated call adds nothing; the names of other runs of the batch may be parents."""
    batch = started(jobs, of("a", "b"), on=ON)
    [(first,)] = jobs.rows("SELECT run_id FROM batch_runs WHERE ref = 'a'")
    [(second,)] = jobs.rows("SELECT run_id FROM batch_runs WHERE ref = 'b'")
    [one] = jobs.claim(second).started
    jobs.succeed(one)
    drain_some(jobs, Chance(random.Random(0)))  # noqa: S311 - no draw
    [one] = jobs.claim(first).started
    jobs.succeed(one)  # its end is stored, not drained
    about = {"batch_id": str(batch), "from_run_id": str(first)}
    runs = [
        {"ref": "c", "key": "job", "after": ["a", "b"]},
        {"ref": "d", "key": "job", "after": ["b"]},
        {"ref": "e", "key": "job", "after": [{"ref": "b", "when": "failure"}]},
    ]
    assert not send(jobs, "add", **about, runs=runs).unchanged
    assert send(jobs, "add", **about, runs=runs).unchanged
    assert refused(send(jobs, "add", **about, runs=of("d", "x"))) == ("runs.0.ref", "the batch already has a run 'd'")
    unknown = [{"ref": "x", "key": "job", "after": ["z"]}]
    assert refused(send(jobs, "add", **about, runs=unknown))[0] == "runs.0.after.0.ref"
    assert states(jobs, batch) | {"c": "", "d": "", "e": ""} == {
        "a": "succeeded", "b": "succeeded", "c": "", "d": "", "e": ""
    }  # fmt: skip
    play(jobs)
    assert {ref: state for ref, state in states(jobs, batch).items() if ref in "cde"} == {
        "c": "succeeded",
        "d": "succeeded",
        "e": "skipped",
    }
    assert [which for which, _ in called(jobs)] == ["succeeded", "finished"]
    assert jobs.rows("SELECT total, succeeded FROM batches") == [(5, 4)]
    assert refused(send(jobs, "add", **about, runs=of("z")))[0] == "batch_id"
    assert_nothing_left(jobs)


def test_an_open_batch_ends_when_it_is_closed(jobs: Database) -> None:
    batch = started(jobs, of("a"), on=ON, open=True)
    play(jobs)
    assert jobs.rows("SELECT state, pending FROM workflows") == [("open", 1)]
    send(jobs, "add", batch_id=str(batch), runs=of("b"))
    play(jobs)
    assert called(jobs) == []
    assert not send(jobs, "close", batch_id=str(batch)).unchanged
    assert send(jobs, "close", batch_id=str(batch)).unchanged
    assert [which for which, _ in called(jobs)] == ["succeeded", "finished"]
    assert jobs.rows("SELECT state, pending, finished_at IS NULL FROM workflows") == [("succeeded", 0, False)]
    assert refused(send(jobs, "add", batch_id=str(batch), runs=of("c")))[0] == "batch_id"


def test_a_closed_batch_ends_with_its_last_run(jobs: Database) -> None:
    batch = started(jobs, of("a"), on=ON, open=True)
    send(jobs, "close", batch_id=str(batch))
    assert called(jobs) == []
    play(jobs)
    assert [which for which, _ in called(jobs)] == ["succeeded", "finished"]
    assert_nothing_left(jobs)


def test_jobs_that_are_deleted_meanwhile_cancel_their_runs(jobs: Database) -> None:
    jobs.submit("gone", overlap="allow_all")
    runs = [*of("a"), {"ref": "b", "key": "gone", "after": ["a"]}, {"ref": "c", "key": "job", "after": ["b"]}]
    batch = started(jobs, [*runs, *of("d", key="gone")], on=ON)
    jobs.apply_batch({"type": "job.delete", "key": "gone"}, {"type": "job.delete", "key": "called"})
    play(jobs)
    assert states(jobs, batch) == {"a": "succeeded", "b": "cancelled", "c": "skipped", "d": "cancelled"}
    assert [which for which, _ in called(jobs)] == ["finished"]
    assert jobs.rows("SELECT state FROM workflows") == [("cancelled",)]
    assert_nothing_left(jobs)


def test_a_repeated_submit_is_one_batch(jobs: Database) -> None:
    first = send(jobs, "submit", runs=of("a"), request_id="r-1")
    assert send(jobs, "submit", runs=of("a"), request_id="r-1").batch_id == first.batch_id
    assert send(jobs, "submit", runs=of("b"), request_id="r-1").code == "request_conflict"
    assert jobs.count("batches") == jobs.count("job_runs") == 1


def test_a_batch_of_a_root_runs_no_graph(jobs: Database) -> None:
    jobs.submit("child", schedule={"after": ["job"]})
    batch = started(jobs, of("a"))
    play(jobs)
    assert states(jobs, batch) == {"a": "succeeded"}
    assert jobs.count("runs") == 1
    assert_nothing_left(jobs)


def test_handler_of_a_batch_reads_its_parents_by_ref(jobs: Database) -> None:
    jobs.submit("bad", overlap="allow_all", retry={"max_attempts": 1})
    batch = started(jobs, CHAIN)
    runs = dict(jobs.rows("SELECT ref, run_id FROM batch_runs WHERE batch_id = %s", [batch]))

    def parents(run: UUID, ref: str | None = None) -> list[tuple[str, str, str | None, UUID | None]]:
        return [(one.key, one.when, one.status, one.run_id) for one in jobs.within(read_parents, run, key=ref)]

    assert parents(runs["a"]) == []
    assert parents(runs["b"]) == [("a", "success", "queued", runs["a"])]
    play(jobs, lambda key: RunState.FAILED if key == "bad" else RunState.SUCCEEDED)
    both = [("b", "success", "succeeded", runs["b"]), ("c", "failure", "failed", runs["c"])]
    assert parents(runs["e"]) == both
    assert parents(runs["e"], "c") == both[1:]
    assert parents(runs["e"], "z") == []
    [reply] = jobs.apply_batch({"type": "run.retry", "run_id": str(runs["c"])})
    assert parents(UUID(reply.run_id)) == [("a", "success", "succeeded", runs["a"])], "a retry has those of its run"
