"""`tidewheel job` with the commands that read and change jobs, on a real database."""

from datetime import timedelta
from uuid import UUID

import pytest

from tests.control.cli.command import NO_DATABASE, Done, json_output, tidewheel
from tests.fixtures.database import Database
from tidewheel.audit import process_user
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.ids import job_id
from tidewheel.runs import RunState

NIGHTLY = ("nightly", "--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--handler", "count-stock")


def create(database: Database, *arguments: object) -> Done:
    done = tidewheel(database, "job", "create", *arguments)
    assert done.code == 0, done.err
    return done


def manual(database: Database, key: str, *arguments: object) -> None:
    create(database, key, "--manual", "--handler", "send-email", *arguments)


def test_job_is_created_by_flags_and_shown(database: Database) -> None:
    made = create(database, *NIGHTLY, "--payload", '{"depth": 2}', "--label", "team=stock", "--overlap", "buffer_one")
    assert made.out.startswith("nightly: created, version 1; next ")
    assert made.out.count("T02:30:00+0") == 1, "the wall time stands beside"
    shown = json_output(database, "job", "show", "nightly")
    assert (shown["key"], shown["version"], shown["kind"]) == ("nightly", 1, "cron")
    assert shown["job_id"] == str(job_id("default", "nightly"))
    assert shown["job"] == {
        "key": "nightly",
        "schedule": {"cron": ["30 2 * * *"], "timezone": "Europe/Berlin"},
        "target": {"type": "handler", "name": "count-stock"},
        "payload": {"depth": 2},
        "overlap": "buffer_one",
        "labels": {"team": "stock"},
    }
    assert shown["next_at"].endswith("Z")
    text = tidewheel(database, "job", "show", "nightly").lines
    assert "30 2 * * * Europe/Berlin" in [line.partition("  ")[2].strip() for line in text]
    assert any(line.startswith("next") and "T02:30:00+0" in line for line in text)


def test_flags_are_applied_to_a_file_from_standard_input(database: Database) -> None:
    text = '{"schedule": "0 8 * * *", "target": "send-email", "labels": {"a": "1", "b": "2"}}'
    arguments = ("job", "create", "a", "-f", "-", "--tz", "Asia/Tokyo", "--label", "b=3")
    assert json_output(database, *arguments, stdin=text)["key"] == "a"
    job = json_output(database, "job", "show", "a")["job"]
    assert job["schedule"] == {"cron": ["0 8 * * *"], "timezone": "Asia/Tokyo"}
    assert job["labels"] == {"a": "1", "b": "3"}
    [refusal] = tidewheel(database, "job", "update", "b", "-f", "-", stdin=f'{{"key": "a", {text[1:]}').refusals
    assert refusal == "key: the job is named twice: 'a' and 'b'; keep one"


def test_local_time_is_read_in_the_zone(database: Database) -> None:
    create(database, "once", "--at", "2099-07-01T08:00", "--tz", "Europe/Berlin", "--url", "http://a.example")
    assert json_output(database, "job", "show", "once")["next_at"] == "2099-07-01T06:00:00Z"


@pytest.mark.landing
def test_target_flag_sets_the_target(database: Database) -> None:
    """An edit keeps the target's other fields; a target of another type replaces it whole."""
    cases: list[tuple[tuple[str, ...], dict[str, object]]] = [
        (("--kafka-topic", "orders"), {"type": "kafka", "topic": "orders"}),
        (
            ("--shell", "/bin/report '; rm' --day=today"),
            {"type": "shell", "argv": ["/bin/report", "; rm", "--day=today"]},
        ),
        (("--lambda", "report:live"), {"type": "lambda", "function": "report:live"}),
        (("--url", "http://a", "--method", "PUT"), {"type": "http", "url": "http://a", "method": "PUT"}),
    ]
    for number, (arguments, target) in enumerate(cases):
        key = f"job-{number}"
        create(database, key, "--manual", *arguments, "--delivery", "at_most_once", "--schedule-to-close", "1h")
        job = json_output(database, "job", "show", key)["job"]
        assert (job["target"], job["delivery"], job["schedule_to_close"]) == (target, "at_most_once", "1h"), arguments
        json_output(database, "job", "update", key, "--handler", "send-email")
        job = json_output(database, "job", "show", key)["job"]
        assert job["target"] == {"type": "handler", "name": "send-email"}, arguments


def test_invalid_value_is_refused_with_its_field(database: Database) -> None:
    cases: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
        (("a", "--cron", "0 25 * * *", "--handler", "h"), ("job.schedule.cron: hour 25", "0 23 * * *")),
        (("a", "--cron", "0 8 * * *"), ("job.target: is missing",)),
        (("a", "--handler", "h", "--overlap", "skipp", "--manual"), ("job.overlap: 'skipp'", "did you mean 'skip'?")),
        (("a", "--handler", "h", "--every", "1s", "--cron", "0 8 * * *"), ("--cron and --every cannot be combined",)),
        (("a", "--handler", "h", "--every", "1s", "--tz", "UTC"), ("job.schedule.timezone", "only cron has it")),
        (("a", "--handler", "h", "--manual", "--url", "http://a"), ("target: ", "cannot be combined")),
        (("a", "--shell", "a 'b", "--manual"), ("--shell: ", "quotation")),
        (("a", "--shell", "a", "--method", "PUT", "--manual"), ("target: ", "--method", "--shell")),
        (("a", "--handler", "h", "--manual", "--payload", "{"), ("--payload:", "is not valid JSON")),
        (("a", "--handler", "h", "--manual", "--payload", '"\udcff"'), ("--payload:", "is not valid UTF-8")),
        (("a", "--handler", "h", "--manual", "--label", "x"), ("--label:", "x=VALUE")),
        (("a", "--handler", "h", "--at", "2999-01-01T00:00"), ("--at:", "--tz", "2999-01-01T00:00:00Z")),
        (("--handler", "h", "--manual"), ("key: is missing",)),
        (("a", "-f", "/nowhere/job.json"), ("--file: /nowhere/job.json cannot be read",)),
    ]
    for arguments, parts in cases:
        [refusal] = tidewheel(database, "job", "create", *arguments).refusals
        for part in parts:
            assert part in refusal, arguments
    assert database.count("jobs") == 0


def test_unreadable_file_is_refused_in_one_line(database: Database) -> None:
    cases: list[tuple[str, str]] = [
        ("- a\n- b\n", "is not a mapping"),
        ("key: a\nkey: b\n", "the name 'key' is given twice"),
        ("1: a\n", "the name '1' is not text"),
        ("key: [\n", "not valid YAML at line 2, column 1: "),
        ('key: a\nschedule: "0 9 * * *\n', "close the quote that opens at line 2, column 11"),
        ("key: a\nschedule: @every 1m\n", "at line 2, column 11: found character '@' that cannot start any token; put"),
        ("key: a\n\ttarget: b\n", "indent with spaces"),
        ("key: a: b\n", "put a value with a colon in quotes"),
        ("key: a\x07\n", "remove control characters"),
        ('{"key": ', "not valid JSON"),
    ]
    for text, part in cases:
        assert part in tidewheel(database, "job", "create", "-f", "-", stdin=text).refusal, text


def test_a_pause_names_its_author_and_door(database: Database) -> None:
    assert tidewheel(database, "job", "create", "a", "--every", "1h", "--handler", "h").code == 0
    assert tidewheel(database, "job", "pause", "a", "--reason", "audit").code == 0
    by = f"{process_user()} (cli)"
    assert f", by {by}, audit" in tidewheel(database, "job", "show", "a").out
    assert f" by {by}: audit." in " ".join(tidewheel(database, "explain", "a").out.split())


def test_every_problem_has_a_line_of_its_own(database: Database) -> None:
    refusals = tidewheel(database, "job", "create", "a", "--manual", "--lane", "fast", "--queue", "A B").refusals
    assert [line.partition(":")[0] for line in refusals] == ["job.target", "job.lane", "job.queue"]


def test_existing_job_is_not_created_again(database: Database) -> None:
    manual(database, "a")
    [refusal] = tidewheel(database, "job", "create", "a", "--manual", "--handler", "other").refusals
    assert refusal.startswith("KEY: the job already exists, at version 1; change it with `tidewheel job update`")
    assert json_output(database, "job", "show", "a")["version"] == 1


def test_update_changes_only_the_fields_of_its_flags(database: Database) -> None:
    create(database, *NIGHTLY, "--payload", '{"depth": 2}', "--label", "team=stock", "--max-attempts", 2)
    edit = ("--cron", "0 4 * * *", "--label", "area=eu", "--lane", "batch")
    done = json_output(database, "job", "update", "nightly", *edit)
    assert (done["version"], done["unchanged"]) == (2, False)
    assert json_output(database, "job", "show", "nightly")["job"] == {
        "key": "nightly",
        "schedule": {"cron": ["0 4 * * *"], "timezone": "Europe/Berlin"},
        "target": {"type": "handler", "name": "count-stock"},
        "payload": {"depth": 2},
        "lane": "batch",
        "retry": {"max_attempts": 2},
        "labels": {"team": "stock", "area": "eu"},
    }
    unset = ("--unset", "labels.team", "--unset", "retry")
    done = json_output(database, "job", "update", "nightly", *unset, "--every", "1h")
    assert done["version"] == 3
    job = json_output(database, "job", "show", "nightly")["job"]
    assert (job["labels"], job["schedule"], "retry" in job) == ({"area": "eu"}, {"interval": "1h"}, False)
    assert json_output(database, "job", "update", "nightly", "--every", "60m")["unchanged"]


@pytest.mark.landing
def test_a_file_replaces_the_whole_job(database: Database) -> None:
    create(database, *NIGHTLY, "--label", "team=stock")
    text = '{"key": "nightly", "schedule": "manual", "target": "count-stock"}'
    assert json_output(database, "job", "update", "-f", "-", stdin=text)["version"] == 2
    assert json_output(database, "job", "show", "nightly")["labels"] == {}


def test_an_update_needs_a_job_and_the_version_it_names(database: Database) -> None:
    [refusal] = tidewheel(database, "job", "update", "a", "--every", "1h").refusals
    assert refusal.startswith("key: tenant 'default' has no job 'a'")
    manual(database, "a")
    assert "if_version" in tidewheel(database, "job", "update", "a", "--every", "1h", "--if-version", 7).refusal
    assert json_output(database, "job", "update", "a", "--every", "1h", "--if-version", 1)["version"] == 2
    [refusal] = tidewheel(database, "job", "update", "a", "--unset", "labels").refusals
    assert refusal.startswith("--unset: the job does not set 'labels'; name one of its fields: ")


def test_a_pause_may_name_its_end(database: Database) -> None:
    create(database, "a", "--every", "1h", "--handler", "h")
    done = tidewheel(database, "job", "pause", "a", "--until", "2099-07-01T08:00", "--tz", "Europe/Berlin")
    assert "paused until 2099-07-01T06:00:00Z  Wed 2099-07-01T08:00:00+02:00 CEST" in done.lines[0]
    assert json_output(database, "job", "show", "a")["paused_until"] == "2099-07-01T06:00:00Z"


def test_trigger_prints_the_id_of_its_run(database: Database) -> None:
    manual(database, "a")
    named = ("job", "trigger", "a", "--payload", '{"to": "ann"}', "--label", "x=1", "--request-id", "r")
    made, again = (json_output(database, *named) for _ in range(2))
    assert made == again
    [line] = tidewheel(database, "job", "trigger", "a", "--delay", "1h").lines
    assert database.client.runs.get(UUID(made["run_id"])).state == RunState.QUEUED
    later = database.client.runs.get(UUID(line.removeprefix("run "))).scheduled_at
    assert timedelta(minutes=59) < later - database.now() <= timedelta(hours=1)
    [refusal] = tidewheel(database, "job", "trigger", "a", "--delay", "soon").refusals
    assert refusal.startswith("--delay: 'soon' is not a duration")


@pytest.mark.landing
def test_a_list_is_narrowed_and_paged(database: Database) -> None:
    for number in range(5):
        manual(database, f"a-{number}", "--label", f"even={number % 2 == 0}", "--label", "x=1")
    create(database, "b", "--every", "1h", "--handler", "h", "--paused")

    def keys(*arguments: object) -> list[str]:
        return [job["key"] for job in json_output(database, "job", "list", *arguments)["jobs"]]

    assert keys("--prefix", "a-", "--label", "even=True", "--label", "x=1") == ["a-0", "a-2", "a-4"]
    assert keys("--paused") == keys("--kind", "interval") == ["b"]
    assert len(keys("--not-paused")) == len(keys("--not-unwell", "--not-quarantined", "--prefix", "a-")) == 5
    assert (len(keys("--lane", "standard", "--queue", "default")), keys("--finished")) == (6, [])
    first = json_output(database, "job", "list", "-n", 4)
    assert first["next_cursor"] == "a-3"
    assert keys("-n", 4, "--after", "a-3") == ["a-4", "b"]
    assert json_output(database, "job", "list", "-n", 6)["next_cursor"] is None
    assert tidewheel(database, "job", "list", "-n", 4).lines[-2:] == ["4 of 6 jobs", "more: add --after a-3"]
    assert tidewheel(database, "job", "list", "--prefix", "z").lines == ["no jobs"]


def test_a_key_with_brackets_is_shown_as_it_is(database: Database) -> None:
    manual(database, "[bold]a[/bold] :smile:")
    assert tidewheel(database, "job", "list").lines[1].startswith("[bold]a[/bold] :smile:")


def test_unreachable_database_is_reported_in_one_line() -> None:
    for arguments in (("list",), ("show", "a"), ("pause", "a"), ("create", "a", "--manual", "--handler", "h")):
        [line] = tidewheel(NO_DATABASE, "job", *arguments).refusals
        assert line.startswith("the database does not answer: ")
        assert "TIDEWHEEL_DATABASE_URL" in line


def test_unmigrated_database_is_reported_in_one_line(fresh_database: Database) -> None:
    fresh_database.execute("DROP TABLE tidewheel_migrations")
    assert "`tidewheel migrate`" in tidewheel(fresh_database, "job", "list").refusal


@pytest.mark.landing
def test_triggers_with_a_dedupe_key_share_a_run(database: Database) -> None:
    manual(database, "a")
    shared = ("job", "trigger", "a", "--dedupe-key", "k", "--window", "10m")
    [first], [second] = (tidewheel(database, *shared).lines for _ in range(2))
    assert (first.rpartition(": ")[2], second) == ("accepted", first.replace("accepted", "deduplicated"))
    moved = json_output(database, *shared, "--mode", "replace")
    assert (moved["dedupe"], f"run {moved['run_id']}") == ("replaced", first.partition(":")[0])
    for option, value, lack in (
        ("--dedupe-key", "k", "window"),
        ("--window", "1m", "key"),
        ("--mode", "reject", "key"),
    ):
        [refusal] = tidewheel(database, "job", "trigger", "a", option, value).refusals
        assert f"dedupe.{lack}: is missing in the trigger and the job" in refusal
    ranked = json_output(database, *shared[:3], "--dedupe-key", "r", "--window", "1m", "--priority", "8")
    assert database.value("SELECT priority FROM job_runs WHERE run_id = %s", [ranked["run_id"]]) == 8


OF_A_JOB = (
    "job show {}", "job pause {}", "job resume {}", "job delete {}", "job trigger {}", "job next {}", "job stats {}",
    "explain {}", "job versions {}", "job diff {} 1", "job rollback {} 1", "job update {} --cron @daily",
    "job skip {} --at 2999-01-01T00:00Z", "job unskip {} --at 2999-01-01T00:00Z",
    "job move {} --at 2999-01-01T00:00Z --to 2999-01-02T00:00Z", "job backfill {} --from 2h --to 1h",
    "run list --job {}", "run cancel --job {}", "admin audit --from 24h --job {}", "dlq list --job {}",
    "dlq redrive --job {}", "dlq purge --yes --job {}",
)  # fmt: skip


@pytest.mark.landing
def test_unknown_key_is_refused_by_every_command(database: Database) -> None:
    for words in OF_A_JOB:
        done = tidewheel(database, *words.format("dialy-report").split())
        [refusal] = done.refusals
        assert done.code == ExitCode.NOT_FOUND, words
        assert refusal.startswith("key: tenant 'default' has no job 'dialy-report'; "), words


def test_a_time_that_has_passed_is_refused_and_never_the_present(database: Database) -> None:
    database.submit("job", schedule="@every 1h")
    for words in ("job trigger job --run-at", "job pause job --until"):
        command = words.split()
        for at in ("yesterday", "2020-01-01T00:00Z", "-5m"):
            [refusal] = tidewheel(database, *command[:-1], f"{command[-1]}={at}").refusals
            assert refusal.startswith(f"{command[-1]}: {at!r} has passed: that was "), (words, at)
        assert tidewheel(database, *command, "+1h").code == 0, words
    assert tidewheel(database, "job", "trigger", "job", "--run-at", "now").code == 0
