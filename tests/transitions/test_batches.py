"""A batch runs its jobs once each after their parents, and triggers jobs at its failure and its end."""

import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import cast
from uuid import UUID

import pytest

from tests.fixtures.acts import about, refusal
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.transitions.graphs import (
    Chance,
    assert_nothing_left,
    change,
    changed,
    drain_some,
    end_some,
    fails_at,
    never,
    play,
)
from tidewheel.errors import Refused
from tidewheel.runs import RunState
from tidewheel.scheduler.cancels import PendingCancels
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.parents import read_parents

_CALLED = ("succeeded", "failed", "finished")
ON = {name: {"key": "called", "payload": {"order": 7}} for name in _CALLED}


def send(database: Database, kind: str, **fields: object) -> Reply:
    return database.apply({"type": f"batch.{kind}", **fields})


def started(database: Database, runs: object, **fields: object) -> UUID:
    return UUID(database.accept({"type": "batch.submit", "runs": runs, **fields}).batch_id)


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


def test_the_first_failure_is_called_once_and_the_end_once(jobs: Database) -> None:
    """The figures of the design: 10,000 runs, 3 of which fail; here 1,000 for the time of a test."""
    jobs.submit("bad", overlap="allow_all", retry={"max_attempts": 1})
    runs = [{"ref": str(n), "key": "bad" if n in {7, 300, 999} else "job"} for n in range(1000)]
    batch = started(jobs, runs, on=ON)
    play(jobs, fails_at("bad"))
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
    {"ref": "f", "key": "job", "after": [{"ref": "d", "when": "always"}]},
]


@pytest.mark.landing
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

    def play_on(decide: Callable[[str], RunState]) -> None:
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

    play_on(fails_at("bad"))
    assert chance.aborted > 3
    assert [which for which, _ in called(jobs)] == ["failed", "finished"]
    again: set[str] = set()
    for ref, parents in parents_of.items():
        beneath = any(one["ref"] in again for one in parents) and expected[ref] != "succeeded"
        if expected[ref] == "failed" or beneath:
            again.add(ref)
            met = all(expected[one["ref"]] in meets[one["when"]] for one in parents)
            expected[ref] = "succeeded" if met else "skipped"
    assert changed(jobs, "resume", batch)
    play_on(fails_at())
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

    play(jobs, fails_at("bad"))
    first = dict(jobs.rows("SELECT ref, run_id FROM batch_runs"))
    assert changed(jobs, "resume", batch)
    assert not changed(jobs, "resume", batch), "it is open"
    again = jobs.value("SELECT run_id FROM batch_runs WHERE ref = 'c'")
    assert jobs.rows("SELECT run_id, redriven_run_id FROM dead_letters") == [(first["c"], again)]
    assert states(jobs, batch) == {**dict.fromkeys("abef", "succeeded"), "c": "queued", "d": "blocked"}
    play(jobs, fails_at("bad"))
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
    assert refusal(change(jobs, "resume", batch)).problem == "no run of the batch failed or was cancelled"


def test_resume_of_a_cancelled_batch_and_what_it_refuses(jobs: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.submit("gone", overlap="allow_all", payload="first")
    runs = [*of("a"), {"ref": "b", "key": "gone", "after": ["a"], "payload": 7}, *of("c", key="gone")]
    batch = started(jobs, runs, on=ON, open=True)
    assert changed(jobs, "cancel", batch)
    assert refusal(change(jobs, "resume", batch)).problem == "the occurrence is being cancelled"
    PendingCancels(jobs.session(), jobs.installation).step()
    play(jobs)
    assert set(states(jobs, batch).values()) == {"cancelled"}
    jobs.accept(about("job.delete", "gone"))
    assert refusal(change(jobs, "resume", batch)).problem == "the job of run 'c' is deleted"
    jobs.submit("gone", overlap="allow_all", payload="second")
    for limit, problem in (("MAX_RUNS", "3 runs would run again"), ("_MAX_READ", "the batch has 3 runs")):
        monkeypatch.setattr(f"tidewheel.transitions.batch_resume.{limit}", 2)
        assert problem in refusal(change(jobs, "resume", batch)).problem
    monkeypatch.undo()
    assert changed(jobs, "resume", batch)
    play(jobs)
    assert set(states(jobs, batch).values()) == {"succeeded"}, "it ends though it was open: the cancel has closed it"
    payloads = [one.payload for one in jobs.requests()]
    assert (payloads.count(b"7"), payloads.count(b'"first"')) == (1, 1), "those of the versions that they ran with"
    assert [which for which, _ in called(jobs)] == ["finished", "succeeded", "finished"]
    assert_nothing_left(jobs)
    jobs.execute("DELETE FROM finished_runs WHERE job_id = (SELECT job_id FROM jobs WHERE key = 'gone')")
    assert refusal(change(jobs, "resume", batch))[:2] == ("run_id", "runs of the batch are no longer stored")


def test_runs_of_an_ordered_job_start_one_after_another(jobs: Database) -> None:
    jobs.submit("line", ordering_key="k")
    batch = started(jobs, of("a", "b", key="line"))
    assert states(jobs, batch) == {"a": "queued", "b": "buffered"}
    play(jobs)
    assert states(jobs, batch) == {"a": "succeeded", "b": "succeeded"}
    assert_nothing_left(jobs)
    error = refusal(send(jobs, "submit", runs=[*of("a"), {"ref": "b", "key": "line", "after": ["a"]}]))
    assert (error.path, "has an ordering_key" in error.problem) == ("runs.1.after", True)


def test_what_a_batch_refuses(jobs: Database) -> None:
    for size, problem in ((0, "is empty"), (10_001, "there are 10001 runs")):
        with pytest.raises(Refused) as error:
            send(jobs, "submit", runs=of("a") * size)
        assert (error.value.errors[0].path, error.value.errors[0].problem) == ("runs", problem)
    unknown = [*of("a"), {"ref": "b", "key": "gone"}]
    assert refusal(send(jobs, "submit", runs=unknown))[:2] == ("runs.1.key", "tenant 'default' has no job 'gone'")
    on = {"failed": {"key": "gone"}}
    assert refusal(send(jobs, "submit", runs=of("a"), on=on)).path == "on.failed.key"
    batch = started(jobs, of("a"))
    assert refusal(send(jobs, "add", batch_id=str(batch), runs=of("b")))[:2] == ("from_run_id", "the batch is closed")
    assert refusal(send(jobs, "add", batch_id=str(UUID(int=7)), runs=of("b"))).path == "batch_id"
    outside = str(jobs.trigger())
    assert refusal(send(jobs, "add", batch_id=str(batch), from_run_id=outside, runs=of("b"))).path == "from_run_id"
    play(jobs)
    assert refusal(send(jobs, "add", batch_id=str(batch), runs=of("b"))).path == "batch_id"
    assert jobs.count("batches") == jobs.count("batch_runs") == 1


def test_a_run_adds_runs_until_its_end_is_drained(jobs: Database) -> None:
    """A repeated call adds nothing; the names of other runs of the batch may be parents."""
    batch = started(jobs, of("a", "b"), on=ON)
    [first], [second] = jobs.rows("SELECT run_id FROM batch_runs ORDER BY ref")
    jobs.succeed(jobs.begin(second))
    drain_some(jobs, never())
    jobs.succeed(jobs.begin(first))  # its end is stored, not drained
    beneath = {"batch_id": str(batch), "from_run_id": str(first)}
    runs = [
        {"ref": "c", "key": "job", "after": ["a", "b"]},
        {"ref": "d", "key": "job", "after": ["b"]},
        {"ref": "e", "key": "job", "after": [{"ref": "b", "when": "failure"}]},
    ]
    assert not send(jobs, "add", **beneath, runs=runs).unchanged
    assert send(jobs, "add", **beneath, runs=runs).unchanged
    assert refusal(send(jobs, "add", **beneath, runs=of("d", "x"))).path == "runs.0.ref"
    unknown = [{"ref": "x", "key": "job", "after": ["z"]}]
    assert refusal(send(jobs, "add", **beneath, runs=unknown)).path == "runs.0.after.0.ref"
    play(jobs)
    assert states(jobs, batch) == dict.fromkeys("abcd", "succeeded") | {"e": "skipped"}
    assert [which for which, _ in called(jobs)] == ["succeeded", "finished"]
    assert jobs.rows("SELECT total, succeeded FROM batches") == [(5, 4)]
    assert refusal(send(jobs, "add", **beneath, runs=of("z"))).path == "batch_id"
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
    assert refusal(send(jobs, "add", batch_id=str(batch), runs=of("c")))[0] == "batch_id"


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
    jobs.apply_batch(about("job.delete", "gone"), about("job.delete", "called"))
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
    play(jobs, fails_at("bad"))
    both = [("b", "success", "succeeded", runs["b"]), ("c", "failure", "failed", runs["c"])]
    assert parents(runs["e"]) == both
    assert parents(runs["e"], "c") == both[1:]
    assert parents(runs["e"], "z") == []
    reply = jobs.accept({"type": "run.retry", "run_id": str(runs["c"])})
    assert parents(UUID(reply.run_id)) == [("a", "success", "succeeded", runs["a"])], "a retry has those of its run"
