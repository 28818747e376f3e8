"""`tidewheel dlq list | groups | show | redrive | purge`, on a real database."""

import pytest

from tests.control.cli.command import json_output, tidewheel
from tests.control.client.test_dead_letters import fail, garble, work_off
from tests.fixtures.acts import about
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.stepping import in_background
from tidewheel.control.cli.exit_codes import ExitCode

ENDED = "SELECT count(*) > 0 FROM works WHERE finished_at IS NOT NULL"


@pytest.fixture
def letters(database: Database) -> Database:
    """Two runs given up, and a message that is no request."""
    database.submit()
    database.submit("other")
    fail(database)
    fail(database, "other", error="Late")
    garble(database)
    return database


def numbers(database: Database, *flags: object) -> list[int]:
    return [letter["id"] for letter in json_output(database, "dlq", "list", *flags)["dead_letters"]]


def test_dead_letters_are_grouped_by_cause(letters: Database) -> None:
    fail(letters)
    first, *_ = json_output(letters, "dlq", "groups")["groups"]
    assert (first["count"], first["key"], first["error_type"]) == (2, "job", "ValueError")
    lines = tidewheel(letters, "dlq", "groups", "--not-redriven").lines
    assert lines[1].split()[:4] == ["2", "job", "failed", "ValueError"]
    assert any("invalid message" in line for line in lines)
    assert tidewheel(letters, "dlq", "groups", "--redriven").lines == ["no dead letters"]


def test_dead_letter_is_shown_whole(letters: Database) -> None:
    message, _, plain = numbers(letters)
    shown = json_output(letters, "dlq", "show", plain)
    assert (shown["key"], shown["error_type"], shown["status"]) == ("job", "ValueError", "failed")
    [attempt] = shown["run"]["attempts"]
    assert (attempt["trace"], attempt["output"]) == ("at line 1", "hello")
    lines = tidewheel(letters, "dlq", "show", plain).lines
    assert lines[-2:] == ["trace   at line 1", "output  hello"]
    assert json_output(letters, "dlq", "show", message)["message_base64"] == "/3s="
    assert any(line.split() == ["value", "\\xff{"] for line in tidewheel(letters, "dlq", "show", message).lines)
    assert tidewheel(letters, "dlq", "show", 404).refusal.startswith("id: there is no dead letter 404")


@pytest.mark.landing
def test_dead_letters_are_redriven_by_id_and_by_filter(letters: Database) -> None:
    message, late, plain = numbers(letters)
    dry = json_output(letters, "dlq", "redrive", "--job", "job", "--dry-run")
    assert (dry["matched"], [letter["id"] for letter in dry["first"]]) == (1, [plain])
    [first, counted] = tidewheel(letters, "dlq", "redrive", plain, "--rate", "10/s").lines
    assert (first.split()[0], counted) == ("redrive", "dead letters to redrive: 1")
    work_off(letters)
    [again] = tidewheel(letters, "dlq", "redrive", plain).lines
    assert again == "dead letters to redrive: 0; already redriven before: 1"
    assert json_output(letters, "dlq", "redrive", "--all")["matched"] == 1, "runs, unless messages are named"
    assert json_output(letters, "dlq", "redrive", "--kind", "message")["matched"] == 1
    work_off(letters)
    assert len(letters.job_runs()) == 2
    assert numbers(letters, "--redriven") == [message, late, plain]
    assert f"{letters.job_runs()[0].run_id}" in "\n".join(tidewheel(letters, "dlq", "show", plain).lines)


def test_rejected_redrive_is_reported_with_exit_code_1(letters: Database) -> None:
    letters.apply_batch(about("job.delete", "other"))
    _, late, _ = numbers(letters)
    scheduler = in_background(lambda: until(lambda: work_off(letters) or letters.value(ENDED), "it has ended"))
    done = tidewheel(letters, "dlq", "redrive", "--all", "--wait")
    scheduler.result(60)
    assert done.code == ExitCode.FAILED
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert {"state finished", "done 1 of 2", "rejected 1"} < set(lines)
    assert lines[-1] == (
        f"rejections {late}: key: tenant 'default' has no job 'other'; submit the job first, or correct the key"
    )


def test_purge_needs_a_confirmation(letters: Database) -> None:
    message, late, plain = numbers(letters)
    assert tidewheel(letters, "dlq", "purge", late).refusal.startswith("--yes: is missing")
    lines = tidewheel(letters, "dlq", "purge", "--kind", "run", "--dry-run").lines
    assert lines[0] == "dead letters that would be purged: 2"
    started, purged = tidewheel(letters, "dlq", "purge", late, "--yes", "--reason", "wrong data").lines
    assert (started.split()[0], purged) == ("purge", "dead letters to purge: 1")
    work_off(letters)
    [entry] = json_output(letters, "admin", "changes", "--action", "dlq.purge")["entries"]
    assert entry["reason"] == "wrong data"
    assert numbers(letters) == [message, plain]


def test_invalid_rate_is_refused(letters: Database) -> None:
    for rate in ("fast", "0/s", "10/d"):
        [refusal] = tidewheel(letters, "dlq", "redrive", "--all", "--rate", rate).refusals
        assert refusal.startswith(f"--rate: {rate!r} is not a rate")
