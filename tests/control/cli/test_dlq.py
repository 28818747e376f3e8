"""`tidewheel dlq list | groups | show | redrive | purge`, on a real database."""

from uuid import UUID

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


def test_dead_letters_are_listed_by_filter_and_page(letters: Database) -> None:
    newest, late, plain = numbers(letters)
    assert numbers(letters, "--job", "other", "--error", "Late", "--status", "failed", "--lane", "standard") == [late]
    assert numbers(letters, "--kind", "message", "--not-redriven", "--since", "2020-01-01T00:00:00Z") == [newest]
    page = json_output(letters, "dlq", "list", "-n", 1)
    assert (page["total"], page["next_cursor"][1]) == (3, newest)
    more = tidewheel(letters, "dlq", "list", "-n", 1).lines[-1].partition("--after ")[2]
    assert numbers(letters, "--after", more) == [late, plain]
    lines = tidewheel(letters, "dlq", "list").lines
    assert lines[1].split()[0] == str(newest)
    assert "invalid message" in lines[1]
    assert lines[-1] == "3 of 3 dead letters"
    assert tidewheel(letters, "dlq", "list", "--redriven").lines == ["no dead letters"]
    [refusal] = tidewheel(letters, "dlq", "list", "--kind", "letter").refusals
    assert refusal.startswith("kind: 'letter' is not valid")


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
    [refusal] = tidewheel(letters, "dlq", "show", 404).refusals
    assert refusal.startswith("id: there is no dead letter 404")


def test_dead_letters_are_redriven_by_id_and_by_filter(letters: Database) -> None:
    message, late, plain = numbers(letters)
    dry = json_output(letters, "dlq", "redrive", "--job", "job", "--dry-run")
    assert (dry["matched"], [letter["id"] for letter in dry["first"]]) == (1, [plain])
    [first, counted] = tidewheel(letters, "dlq", "redrive", plain, "--rate", "10/s").lines
    assert (first.split()[0], counted) == ("redrive", "dead letters to redrive: 1")
    work_off(letters)
    assert tidewheel(letters, "dlq", "redrive", plain).lines == [
        "dead letters to redrive: 0; already redriven before: 1"
    ]
    assert json_output(letters, "dlq", "redrive", "--all")["matched"] == 1, "runs, unless messages are named"
    assert json_output(letters, "dlq", "redrive", "--kind", "message")["matched"] == 1
    work_off(letters)
    assert len(letters.job_runs()) == 2
    assert numbers(letters, "--redriven") == [message, late, plain]
    assert f"{letters.job_runs()[0].run_id}" in "\n".join(tidewheel(letters, "dlq", "show", plain).lines)


def test_work_is_listed_shown_paused_resumed_and_cancelled(letters: Database) -> None:
    assert tidewheel(letters, "work", "list").lines == ["no bulk work"]
    asked = json_output(letters, "dlq", "redrive", "--all", "--rate", "60/m", "--reason", "mended")
    redrive_id = asked["work_id"]
    assert tidewheel(letters, "work", "pause", redrive_id).lines == [f"work {redrive_id}: paused"]
    assert tidewheel(letters, "work", "pause", redrive_id).lines == [
        f"work {redrive_id}: unchanged: the work is already paused"
    ]
    work_off(letters)
    assert json_output(letters, "work", "show", redrive_id)["done_count"] == 0
    assert not json_output(letters, "work", "resume", redrive_id)["unchanged"]
    assert tidewheel(letters, "work", "cancel", redrive_id).lines == [f"work {redrive_id}: cancelled"]
    assert tidewheel(letters, "work", "resume", redrive_id).code == ExitCode.REFUSED
    shown = tidewheel(letters, "work", "show", redrive_id).lines
    assert [line.split() for line in shown[1:4]] == [
        ["state", "cancelled"], ["done", "0", "of", "2"], ["rate", "1/s"]
    ]  # fmt: skip
    assert tidewheel(letters, "work", "list").lines[1].endswith("cancelled  0 of 2  0         1/s   mended")
    letters.execute("UPDATE works SET matched_count = 10001, done_count = 20000")  # counted to 10,001
    assert "20,000 of more than 10,000" in tidewheel(letters, "work", "list").lines[1]
    assert tidewheel(letters, "work", "show", UUID(int=0)).code == ExitCode.NOT_FOUND


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
    [refusal] = tidewheel(letters, "dlq", "purge", late).refusals
    assert refusal.startswith("--yes: is missing")
    lines = tidewheel(letters, "dlq", "purge", "--kind", "run", "--dry-run").lines
    assert lines[0] == "dead letters that would be purged: 2"
    started, purged = tidewheel(letters, "dlq", "purge", late, "--yes", "--reason", "wrong data").lines
    assert (started.split()[0], purged) == ("purge", "dead letters to purge: 1")
    work_off(letters)
    [entry] = json_output(letters, "admin", "changes", "--action", "dlq.purge")["entries"]
    assert entry["reason"] == "wrong data"
    assert numbers(letters) == [message, plain]


def test_command_without_ids_or_filter_or_with_an_impossible_id_is_refused(letters: Database) -> None:
    for command in (("redrive",), ("purge", "--yes")):
        [refusal] = tidewheel(letters, "dlq", *command).refusals
        assert refusal.startswith("ids: no dead letter is selected"), command
    for command, path in ((("show",), "number"), (("redrive",), "ids.0"), (("purge", "--yes"), "ids.0")):
        for number in ("0", "-1", "9223372036854775808"):
            refused = tidewheel(letters, "dlq", *command, "--", number)
            assert [refusal.split(":")[0] for refusal in refused.refusals] == [path], (command, number)


def test_invalid_rate_is_refused(letters: Database) -> None:
    for rate in ("fast", "0/s", "10/d"):
        [refusal] = tidewheel(letters, "dlq", "redrive", "--all", "--rate", rate).refusals
        assert refusal.startswith(f"--rate: {rate!r} is not a rate")
