"""`ask`: what an id or a key names, the same by the resolver and REST."""

from http import HTTPStatus
from uuid import UUID

import pytest

from tests.control.api.answering import answering
from tests.control.explain.explaining import done, t
from tests.fixtures.acts import ending, submission
from tests.fixtures.database import ClockedDatabase, Database
from tidewheel.control.ask import Answer, Kind, ask
from tidewheel.ids import job_id
from tidewheel.runs import RunState


def asked(database: Database, text: str, tenant: str = "default") -> Answer:
    return database.within(ask, tenant, text)


def test_ids_numbers_and_keys_lead_to_what_they_name(database: Database) -> None:
    database.submit("nightly", retry={"max_attempts": 1})
    started = database.begun("nightly")
    database.end(ending(started, RunState.FAILED, error_type="ConnectionError", error_message="refused"))
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
    clocked.submit("nightly", retry={"max_attempts": 1})
    started, other = clocked.begun("nightly"), clocked.trigger("nightly", request_id="other")
    clocked.end(ending(started, RunState.FAILED))
    begin, last = str(started.run_id)[:8], str(started.run_id)[-4:]
    for text in (f"{begin}…{last}", f"{begin}...{last}".upper()):
        found = asked(clocked, text)
        assert (found.kind, found.target, found.words) == (Kind.RUN, str(started.run_id), "nightly: failed")
    twin = UUID(str(other)[:-4] + last)
    clocked.execute("UPDATE job_runs SET run_id = %s WHERE run_id = %s", [twin, other])
    both = asked(clocked, f"{begin}…{last}")
    assert both.kind is Kind.MATCHES
    assert {each.target for each in both.alternatives} == {str(started.run_id), str(twin)}
    far = asked(clocked, f"{begin}…{last}", "other")
    assert (far.kind, far.words) == (Kind.NOTHING, f"no job, run or dead letter is '{begin}…{last}'")
    assert asked(clocked, f"ffffffff…{last}").kind is Kind.NOTHING


@pytest.mark.parametrize("key", ["a at b", "<script>alert(1)</script>", "שלום עולם", "x" * 255])
def test_exact_key_wins_over_keys_that_begin_with_it(database: Database, key: str) -> None:
    for each in (key, f"{key[:200]}-more"):
        database.submit(each)
    assert (asked(database, key).kind, asked(database, key).target) == (Kind.JOB, key)


def test_part_of_a_key_lists_jobs_first_those_that_begin_with_it(database: Database) -> None:
    for key in ("a/send", "send-a", "send-b", "other"):
        database.submit(key)
    found = asked(database, "send")
    assert found.kind is Kind.MATCHES
    assert [each.target for each in found.alternatives] == ["send-a", "send-b", "a/send"]
    assert {each.kind for each in found.alternatives} == {Kind.JOB}


def test_deleted_job_is_not_found_by_its_key(database: Database) -> None:
    database.submit("nightly")
    done(database, "job.delete", "nightly")
    assert asked(database, "nightly").kind is Kind.NOTHING


def test_rest_gives_the_same_answer(database: Database) -> None:
    database.submit("nightly")
    with answering(database) as client:
        answer = client.get("/api/v1/ask", params={"q": "nightly"}).json()
        assert (answer["kind"], answer["target"]) == ("job", "nightly")
        assert client.get("/api/v1/ask", params={"q": "nightyl"}).json()["kind"] == "nothing"
        assert client.get("/api/v1/ask", params={"q": ""}).status_code == HTTPStatus.UNPROCESSABLE_ENTITY


def test_tenant_finds_what_is_its_own(database: Database) -> None:
    database.submit("mine")
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    database.apply_batch(submission("theirs") | {"tenant": "acme"})
    assert [asked(database, key).kind for key in ("mine", "theirs")] == [Kind.JOB, Kind.NOTHING]
    assert [asked(database, key, "acme").kind for key in ("mine", "theirs")] == [Kind.NOTHING, Kind.JOB]
