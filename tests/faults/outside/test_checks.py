"""The checks are tested themselves: no right history is flagged, and every doctored one is (H12)."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.outside.checks import match
from tests.faults.outside.doctors import DOCTORS, requests_of_attempts_out_of_order
from tests.faults.outside.due import instants, text
from tests.faults.outside.mutants import MUTANTS
from tests.faults.outside.records import SECOND, History
from tests.faults.outside.right import BEGUN, Maker, interval, job, plain
from tests.faults.outside.verdict import Enough, check
from tests.fixtures.examples import examples
from tests.strict_types import ROOT

NO_LEAST = Enough(targets=0, faults=0)
_LENGTH = 40


def test_right_history_passes() -> None:
    report = check(plain(), NO_LEAST)
    assert report.verdict == "pass", report
    assert report.counts["targets"] > 100


def test_verdict_is_unknown_when_too_little_was_seen() -> None:
    report = check(plain(), Enough())
    assert report.verdict == "unknown"
    assert len(report.lacking) == 2


@pytest.mark.parametrize("name", DOCTORS)
def test_doctored_history_is_flagged(name: str) -> None:
    promise, doctor = DOCTORS[name]
    report = check(doctor(plain()), NO_LEAST)
    assert report.verdict == "fail"
    assert promise in {anomaly.check for anomaly in report.anomalies}, report


def test_deletion_may_cancel_what_waits_for_a_slot_since_an_edit() -> None:
    made = Maker(length=_LENGTH, faults=((10, 20),))
    made.request(job("waits", interval(10, 2)), 5, 0.1)
    made.end(made.new_id(), "waits", BEGUN + 12 * SECOND, "cancelled", reason="job_deleted")
    made.request(job("waits", interval(10, 5)), 13, 0.1)
    made.request({"type": "job.delete", "key": "waits"}, 14, 0.1)
    assert check(made.history(), NO_LEAST).verdict == "pass"


def test_row_of_a_held_transaction_may_leave_late() -> None:
    history = requests_of_attempts_out_of_order(plain())
    late = [
        replace(message, at=message.at + 5 * SECOND, value={**message.value, "publish_at": message.at})
        if message.kind == "RunRequest" and message.value["attempt"] == 1
        else message
        for message in history.messages
    ]
    history = replace(history, messages=tuple(late))
    assert "H6" in {anomaly.check for anomaly in check(history, NO_LEAST).anomalies}
    held = replace(history.faults[0], injected=history.begun, detail={"holds_commits": True})
    assert check(replace(history, faults=(held,)), NO_LEAST).verdict == "pass"


def test_message_that_the_broker_has_written_twice_is_no_gap() -> None:
    history = plain()
    first = history.messages[0]
    twice = replace(history, messages=(first, *history.messages))
    assert check(twice, NO_LEAST).verdict == "pass"
    other = replace(first, digest="another")
    assert check(replace(history, messages=(other, *history.messages)), NO_LEAST).verdict == "fail"


def right_history(draw: Random) -> History:
    """Make a history of random requests, faults and delays, in which everything due has run."""
    begun = draw.randint(5, 15)
    made = Maker(length=_LENGTH, faults=((begun, begun + draw.randint(0, 8)),))
    for number in range(draw.randint(1, 3)):
        key, at, exists = f"job-{number}", 0.1, False
        for _ in range(draw.randint(1, 5)):
            at += draw.uniform(0.05, 8)
            took = draw.uniform(0.01, 2)
            kinds = ("job.submit", "job.pause", "job.resume", "job.delete") if exists else ("job.submit",)
            kind = draw.choice(kinds)
            submit = job(key, interval(draw.randint(1, 3), draw.random()))
            made.request(submit if kind == "job.submit" else {"type": kind, "key": key}, at, took)
            exists = kind != "job.delete"
            at += took
    for number in range(draw.randint(0, 2)):
        asked = draw.uniform(1, 20)
        instant = BEGUN + int((asked + draw.uniform(-1, 3)) * SECOND)
        op = made.request(job(f"once-{number}", {"once": text(instant)}), asked, draw.uniform(0.01, 5))
        made.fire(f"once-{number}", instant, max(instant, op.invoked) + draw.randint(0, 4 * SECOND))
    for target in list(made.due()):
        if target.job_key.startswith("once"):
            continue
        if target.certain or draw.random() < 0.5:
            late = int(draw.uniform(0.001, 9.9) * SECOND)
            faulty = begun <= (target.due + late - BEGUN) / SECOND <= begun + 30
            repeated = (200, 200) if faulty else (200,)
            attempts = draw.choice(((200,), (200,), (500, 200), (0, 200), repeated))
            made.fire(target.job_key, target.at, target.due + late, attempts=attempts)
    return made.history()


@examples(100)
@given(st.randoms(use_true_random=False))
def test_right_histories_are_never_flagged(draw: Random) -> None:
    report = check(right_history(draw), NO_LEAST)
    assert report.verdict == "pass", report


@examples(200)
@given(st.data())
def test_matching_finds_every_pair_that_brute_force_finds(data: st.DataObject) -> None:
    starts = data.draw(st.lists(st.integers(0, 12), max_size=5))
    windows = data.draw(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=5))
    spans = [(first, first + length) for first, length in windows]
    assert match(starts, spans) == _brute(starts, spans)


def _brute(starts: list[int], spans: list[tuple[int, int]]) -> int:
    if not starts:
        return 0
    start, *others = starts
    best = _brute(others, spans)
    for place, (first, last) in enumerate(spans):
        if first <= start <= last:
            best = max(best, 1 + _brute(others, spans[:place] + spans[place + 1 :]))
    return best


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"interval": "2s", "anchor": "1970-01-01T00:00:01.5+00:00"}, [1.5, 3.5]),
        ({"cron": "*/2 * * * * *", "timezone": "UTC"}, [0, 2, 4]),
        ({"cron": "1-4/3 0 1 * * *", "timezone": "Europe/Berlin"}, [1, 4]),
        ({"once": "1970-01-01T00:00:03+00:00"}, [3]),
        ("manual", []),
    ],
)
def test_instants_are_those_of_the_calendar(schedule: object, expected: list[float]) -> None:
    assert [at / SECOND for at in instants(schedule, 0, 5 * SECOND)] == expected


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_changes_the_product(name: str) -> None:
    written = "".join(path.read_text() for path in ROOT.glob("*/queries.sql"))
    written += (ROOT / "tidewheel" / "transitions" / "queries.sql").read_text()
    for old in MUTANTS[name].texts:
        assert old in written
    assert MUTANTS[name].texts or MUTANTS[name].patch is not None
