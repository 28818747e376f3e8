"""`ask`: what a text names, the same by the resolver, the command line and REST."""

from datetime import timedelta
from http import HTTPStatus
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.control.api.answering import answering
from tests.control.cli.command import tidewheel
from tests.control.console.pages import console, key_of
from tests.control.explain.explaining import done, fire_all, t
from tests.control.reads.test_waits import executor
from tests.fixtures.database import ClockedDatabase, Database
from tests.transitions.acts import HANDLER, apply_batch, begun, end, ending, submission, submit, trigger
from tidewheel.control.ask.answer import Answer, Kind, ask
from tidewheel.control.ask.question import MAX_QUESTION, Named, read_question
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.explain.explanation import OccurrenceOutcome
from tidewheel.control.explain.text import MANUAL
from tidewheel.errors import ScheduleRefused
from tidewheel.ids import job_id
from tidewheel.runs import RunState

DAILY = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
KEYS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=20)
TIMES = st.sampled_from(
    ["2:30", "yesterday 02:30", "-5m", "13 Nov 02:30", "Fri 13 Nov 2026 02:30:04.118 PM UTC", "3 pm", "now"]
)


def asked(database: Database, text: str, zone: str | None = None, *, all_tenants: bool = True) -> Answer:
    with database.transaction() as connection:
        return ask(connection, "default", text, zone, all_tenants=all_tenants, misfire_after=timedelta(seconds=60))


@given(KEYS, TIMES)
@example("why", "now")
@example("at", "2:30")
def test_each_way_to_write_a_key_and_a_time_names_both(key: str, time: str) -> None:
    for text in (f"{key} at {time}", f"why {key} {time}", f"why {key} at {time}?", f"{key} {time}"):
        assert Named(key, time) in read_question(text).named


@given(st.text(max_size=500))
@example("why ")
@example(" at ")
@example("\0")
@example("a at " * 200)
def test_any_text_is_read_with_few_meanings(text: str) -> None:
    found = read_question(text)
    assert len(found.text) <= MAX_QUESTION
    assert len(found.named) <= MAX_QUESTION
    for each in found.named:
        each.key.encode()  # as an id of a job needs it


def test_a_time_without_parts_of_a_second_finds_an_occurrence_that_has_them(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00:07") + timedelta(milliseconds=123))
    submit(clocked, "sync", schedule={"interval": "40s"})
    at = t("03-02T08:00:47") + timedelta(milliseconds=123)
    clocked.stop_clock(at)
    fire_all(clocked)
    found = asked(clocked, "sync at 08:00:47")
    assert (found.at, found.explanation and found.explanation.outcome) == (at, OccurrenceOutcome.FIRED)
    assert asked(clocked, "sync at 08:00").at == at, "the only one of its minute"
    for text in ("sync at 08:00:46", "sync at 08:02"):
        missed = asked(clocked, text)
        assert missed.explanation is not None
        assert missed.explanation.outcome is OccurrenceOutcome.NO_OCCURRENCE, "the minute has two"
    shown = tidewheel(clocked, "job", "explain", "sync", "--at", "2026-03-02T08:00:47Z").out
    assert "sync at 2026-03-02T08:00:47.123000Z: fired" in shown


def test_a_time_of_a_job_without_a_schedule_names_the_run_of_its_minute_or_the_nearest_runs(
    clocked: ClockedDatabase,
) -> None:
    clocked.stop_clock(t("03-02T07:00"))
    submit(clocked, "by-hand")
    instants = [t("03-02T08:00:07.123"), t("03-02T09:30"), t("03-02T09:30:41")]
    runs: list[UUID] = []
    for at in instants:
        clocked.stop_clock(at)
        runs.append(trigger(clocked, "by-hand"))
    clocked.stop_clock(t("03-02T10:00"))
    found = asked(clocked, "by-hand at 8am")
    assert found.at == instants[0], "the only run of its minute"
    assert [each.run_id for each in found.explanation.others] == runs[:1] if found.explanation else False
    between = asked(clocked, "by-hand at 9am")
    assert between.words == MANUAL
    assert [(each.words, each.at) for each in between.alternatives] == [("the nearest run", at) for at in instants[:2]]
    assert "before 2026-03-02T08:00:07.123" in " ".join(
        tidewheel(clocked, "job", "explain", "by-hand", "--at", "2026-03-02T09:00Z").out.split()
    )
    why = asked(clocked, "why by-hand")
    assert [each.at for each in why.alternatives] == instants[-1:]
    assert "the job had no occurrence" in tidewheel(clocked, "job", "explain", "by-hand", "--last", "24h").out


def test_ids_numbers_and_keys_lead_to_what_they_name(database: Database) -> None:
    submit(database, "nightly", retry={"max_attempts": 1})
    started = begun(database, "nightly")
    end(database, ending(started, RunState.FAILED, error_type="ConnectionError", error_message="refused"))
    run = asked(database, f" {str(started.run_id).upper()} ")
    assert (run.kind, run.target, run.words) == (Kind.RUN, str(started.run_id), "nightly: failed")
    number = database.value("SELECT id FROM dead_letters")
    letter = asked(database, f"#{number}")
    assert (letter.kind, letter.target, letter.words) == (Kind.DEAD_LETTER, str(number), "nightly: ConnectionError")
    assert asked(database, "nightly").kind is Kind.JOB
    by_id = asked(database, str(job_id("default", "nightly")))
    assert (by_id.kind, by_id.target) == (Kind.JOB, "nightly")


def test_short_id_finds_the_run_of_this_tenant_and_names_several(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    submit(clocked, "nightly", retry={"max_attempts": 1})
    started, other = begun(clocked, "nightly"), trigger(clocked, "nightly", request_id="other")
    end(clocked, ending(started, RunState.FAILED))
    begin, last = str(started.run_id)[:8], str(started.run_id)[-4:]
    for text in (f"{begin}…{last}", f"{begin}...{last}".upper()):
        found = asked(clocked, text)
        assert (found.kind, found.target, found.words) == (Kind.RUN, str(started.run_id), "nightly: failed")
    twin = UUID(str(other)[:-4] + last)
    clocked.execute("UPDATE job_runs SET run_id = %s WHERE run_id = %s", [twin, other])
    both = asked(clocked, f"{begin}…{last}")
    assert both.kind is Kind.MATCHES
    assert {each.target for each in both.alternatives} == {str(started.run_id), str(twin)}
    with clocked.transaction() as connection:
        far = ask(connection, "other", f"{begin}…{last}", misfire_after=timedelta(seconds=60))
    assert (far.kind, far.words) == (Kind.NOTHING, f"no run is '{begin}…{last}'")
    assert asked(clocked, f"ffffffff…{last}").kind is Kind.NOTHING


def test_time_is_one_of_the_readers_zone_else_of_the_jobs(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T00:00"))
    submit(clocked, "nightly", schedule=DAILY)
    clocked.stop_clock(t("03-02T08:00"))
    fire_all(clocked)
    here = asked(clocked, "nightly at 2:30")
    assert (here.kind, here.at, here.zone) == (Kind.OCCURRENCE, t("03-02T01:30"), "Europe/Berlin")
    assert here.explanation is not None
    assert here.explanation.outcome is OccurrenceOutcome.FIRED
    assert here.words.startswith("It fired 6 h 30 min late")
    elsewhere = asked(clocked, "why nightly yesterday 02:30", "UTC")
    assert (elsewhere.at, elsewhere.zone) == (t("03-01T02:30"), "UTC")
    assert elsewhere.words != here.words
    assert elsewhere.alternatives[0].at == t("03-01T01:30")
    assert elsewhere.alternatives[0].zone == "Europe/Berlin"
    assert asked(clocked, "why nightly").at == t("03-02T01:30")
    assert {each.at for each in here.alternatives} == {t("03-03T01:30")}
    with pytest.raises(ScheduleRefused, match="Europe/Berlinn"):
        asked(clocked, "nightly at 2:30", "Europe/Berlinn")


@pytest.mark.parametrize(
    "key", ["a at b", "why not", "nightly 2:30", "<script>alert(1)</script>", "שלום עולם", "x" * 255]
)
def test_exact_key_wins_whatever_it_looks_like(database: Database, key: str) -> None:
    submit(database, key, schedule=DAILY)
    assert (asked(database, key).kind, asked(database, key).target) == (Kind.JOB, key)
    found = asked(database, f"{key} at 2026-03-02T02:30")
    assert (found.kind, found.target, found.zone) == (Kind.OCCURRENCE, key, "Europe/Berlin")


def test_beginning_of_a_name_lists_jobs_executors_queues_and_handlers(database: Database) -> None:
    for key in ("send-a", "send-b", "other"):
        submit(database, key)
    executor(database, HANDLER, queue="sender")
    found = asked(database, "send")
    assert found.kind is Kind.MATCHES
    assert [(each.kind, each.target) for each in found.alternatives] == [
        (Kind.JOB, "send-a"),
        (Kind.JOB, "send-b"),
        (Kind.QUEUE, "sender"),
        (Kind.HANDLER, HANDLER),
    ]
    assert {each.kind for each in asked(database, "send", all_tenants=False).alternatives} == {Kind.JOB}


def test_what_means_nothing_names_what_was_tried_and_the_nearest_keys(database: Database) -> None:
    submit(database, "nightly", schedule=DAILY)
    submit(database, "weekly")
    near = asked(database, "nightyl")
    assert (near.kind, near.words) == (Kind.NOTHING, "no job is 'nightyl'")
    assert [each.target for each in near.alternatives] == ["nightly"]
    timed = asked(database, "nightly at 25:00")
    assert timed.kind is Kind.NOTHING
    assert timed.words.count("hour must be in 0..23") == 1
    assert asked(database, "nope at 13 Nov 02:30").words == "no job is 'nope'"
    for text in ("nope at noon", "why nope at noon?"):
        words = asked(database, text).words
        assert words.startswith("no job is 'nope', and 'noon' is not a time; write 04:03, 3am, yesterday,")
    assert asked(database, "nightly at noon").words.count("'noon'") == 1
    assert asked(database, "#4711").words == "no dead letter is '#4711'"


def test_deleted_job_is_explained_and_not_found_by_its_key(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T00:00"))
    submit(clocked, "nightly", schedule=DAILY)
    done(clocked, "job.delete", "nightly")
    assert asked(clocked, "nightly").kind is Kind.NOTHING
    assert asked(clocked, "nightly at 2026-03-02T02:30").kind is Kind.OCCURRENCE


def test_command_line_and_rest_give_the_same_answer(database: Database) -> None:
    submit(database, "nightly", schedule=DAILY)
    run = trigger(database, "nightly")
    with answering(database) as client:
        answer = client.get("/api/v1/ask", params={"q": "nightly at 2040-01-01T02:30", "tz": "UTC"}).json()
        assert (
            answer == tidewheel(database, "ask", "nightly", "at", "2040-01-01T02:30", "--tz", "UTC", "-o", "json").json
        )
        assert answer["at"] == "2040-01-01T02:30:00Z"
        assert client.get("/api/v1/ask", params={"q": ""}).status_code == HTTPStatus.UNPROCESSABLE_ENTITY
        assert client.get("/api/v1/ask", params={"q": "a", "tz": "Mars"}).status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert tidewheel(database, "ask", str(run)).lines == [
        f"run {run}: nightly: queued",
        f"tidewheel run show {run}",
    ]
    at = tidewheel(database, "ask", "nightly at 1 Jan 2040 02:30").lines
    assert at[0] == "nightly at 2040-01-01T01:30:00Z  Sun 2040-01-01T02:30:00+01:00 CET"
    nothing = tidewheel(database, "ask", "nightyl")
    assert nothing.code == ExitCode.NOT_FOUND
    assert nothing.refusals == ["question: no job is 'nightyl'; the nearest keys are nightly"]


def test_key_of_a_tenant_finds_what_is_its_own(database: Database) -> None:
    submit(database, "mine")
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    apply_batch(database, submission("theirs") | {"tenant": "acme"})
    executor(database, HANDLER)
    with console(database) as client:
        client.headers["Authorization"] = f"Bearer {key_of(database, 'read')}"
        found = [client.get("/api/v1/ask", params={"q": text}).json()["kind"] for text in ("mine", "theirs", HANDLER)]
    assert found == ["job", "nothing", "nothing"]


def test_a_long_text_of_a_large_installation_is_answered_by_indexed_reads(database: Database) -> None:
    """A text as long as the longest key is compared with the nearest few hundred keys."""
    for number in range(30):
        submit(database, f"{'k' * 240}-{number}")
    found = asked(database, "k" * 239 + "x")
    assert len(found.alternatives) == 3
