"""`tidewheel apply`: files of every form; errors name file, line, field and remedy."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.control.cli.command import process, tidewheel
from tests.fixtures.database import Database
from tests.strict_types import ROOT
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.job_files import MAX_WHOLE_BYTES, read_jobs
from tidewheel.control.client.bulk_load import SUBMIT_BATCH

Write = Callable[[str, str], str]
FOREIGN = ROOT / "tests" / "control" / "foreign_files"

GOOD = '{"key":"a","schedule":"@every 10s","target":"send-email"}'
OTHER = '{"key":"b","schedule":"manual","target":"send-email","payload":{"to":"ann"}}'


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: str) -> str:
        path = tmp_path / name
        path.write_text(content)
        return str(path)

    return write_file


def keys(database: Database) -> list[str]:
    return [key for (key,) in database.rows("SELECT key FROM jobs WHERE version > 0 ORDER BY key")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("jobs.jsonl", f"{GOOD}\n\n{OTHER}\n"),
        ("jobs.json", f"[\n{GOOD},\n{OTHER}]"),
        ("jobs.json", f"[{GOOD},{OTHER}]\n"),
        (
            "jobs.yaml",
            "- {key: a, schedule: '@every 10s', target: send-email}\n- {key: b, schedule: manual, target: x}\n",
        ),
        ("jobs.yml", "key: a\nschedule: '@every 10s'\ntarget: send-email\n---\nkey: b\nschedule: manual\ntarget: x\n"),
        ("jobs", "---\nkey: a\nschedule: manual\ntarget: x\n---\n- {key: b, schedule: manual, target: x}\n"),
    ],
)
def test_every_form_of_file_is_read(database: Database, write: Write, name: str, content: str) -> None:
    path = write(name, content)
    found = tidewheel(database, "apply", path, "--output", "json").json
    assert (found["created"], found["rejected"], found["problems"]) == (2, 0, [])
    assert keys(database) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("jobs.jsonl", f"{GOOD}\n" * 10),
        ("jobs.json", f"[{','.join([GOOD] * 10)}]"),
        ("jobs.yaml", "- {key: ü, schedule: manual, target: x}\n" * 10),
        ("jobs.yaml", "key: ü\nschedule: manual\ntarget: x\n---\n" * 10),
    ],
)
def test_bytes_read_grow_with_each_job_for_the_progress_bar(write: Write, name: str, content: str) -> None:
    total = len(content.encode())
    read = [job.bytes_read for job in read_jobs(write(name, content))][:10]
    assert [round(10 * each / total) for each in read] == list(range(1, 11))


def test_empty_document_is_no_job_and_prune_goes_on(database: Database, write: Write) -> None:
    """Issue 39, A2: it was a rejected job, so that nothing was pruned."""
    for empty in ("---\n---\n", "", "# no job\n", "---\n# no job\n---\nnull\n---\n~\n...\n"):
        for key in ("a", "old"):
            database.submit(key)
        path = write("jobs.yaml", f"{empty}---\nkey: a\nschedule: manual\ntarget: send-email\n---\n{empty}")
        found = tidewheel(database, "apply", path, "--prune", "--all", "--output", "json")
        assert (found.code, found.err) == (0, "old: deleted\n"), empty


def test_standard_input_is_read_and_a_second_apply_changes_nothing(database: Database) -> None:
    first = tidewheel(database, "apply", "-", stdin=f"{GOOD}\n{OTHER}\n")
    assert first.lines == ["2 created, 0 updated, 0 unchanged, 0 rejected"]
    edited = OTHER.replace("ann", "bob")
    again = tidewheel(database, "apply", "-", stdin=f"{GOOD}\n{edited}\n")
    assert again.lines == ["0 created, 1 updated, 1 unchanged, 0 rejected"]


BAD = f"""{GOOD}
{{"key":"x","schedule":"@every 10s","targte":"send-email"}}
{{"key":"y","schedule":
{{"schedule":"manual","target":"send-email"}}
{{"key":"z","schedule":"0 0 30 2 *","target":"send-email"}}
{OTHER}
"""


@pytest.mark.parametrize("bulk", [(), ("--bulk",)], ids=["", "bulk"])
def test_rejected_job_is_reported_and_others_are_applied(database: Database, write: Write, bulk: Sequence[str]) -> None:
    path = write("jobs.jsonl", BAD)
    done = tidewheel(database, "apply", path, *bulk)
    assert done.code == 1
    assert done.out.startswith("2 created")
    assert done.out.endswith("4 rejected\n")
    told = [line.removeprefix(f"{path}:") for line in done.err.splitlines()]
    assert sorted(told) == sorted(
        [
            "2: targte: there is no field 'targte'; did you mean 'target'?",
            "2: target: is missing; add what runs: a handler's name, or"
            ' {"type": "http", "url": "https://example.org/report"}',
            "3: not valid JSON: Expecting value at column 23; write a job as an object: key, schedule, target",
            "4: key: is missing; add a key, so that the job is recognized next time",
            "5: schedule.cron: no date matches `0 0 30 2 *`, so it can never fire; correct its day and month fields: 30"
            " February, for example, does not exist",
        ]
    )
    assert keys(database) == ["a", "b"]


def test_cycle_in_a_file_is_spelled_and_other_jobs_are_applied(database: Database, write: Write) -> None:
    jobs: list[tuple[str, list[str]]] = [("a", ["c"]), ("b", ["a"]), ("c", ["b"]), ("d", ["e"]), ("e", [])]
    lines = [json.dumps({"key": key, "schedule": {"after": after}, "target": "noop"}) for key, after in jobs[:-1]]
    lines.append('{"key": "e", "schedule": "manual", "target": "noop"}')
    done = tidewheel(database, "apply", path := write("jobs.jsonl", "\n".join(lines)))
    assert (done.code, done.out) == (1, "2 created, 0 updated, 0 unchanged, 3 rejected\n")
    assert done.err.splitlines() == [
        f"{path}:{line}: schedule.after: the jobs form a cycle: a → b → c → a; remove one of these edges"
        for line in (1, 2, 3)
    ]
    assert keys(database) == ["d", "e"]


def test_json_or_yaml_list_reports_the_line_of_each_job(database: Database, write: Write) -> None:
    array = write("jobs.json", f'[{GOOD},\n\n {{"key": "x"}},\n 5]')
    yaml = write("jobs.yaml", "# jobs\n- {key: y, schedule: manual, target: x}\n-\n  key: x\n- 5\n-\n")
    done = tidewheel(database, "apply", array, yaml, "--output", "json")
    assert done.code == 1
    places = {problem["place"] for problem in json.loads(done.out)["problems"]}
    assert places == {f"{array}:3", f"{array}:4", f"{yaml}:4", f"{yaml}:5", f"{yaml}:6"}


@pytest.mark.parametrize(
    ("content", "line", "told"),
    [
        (f"[{GOOD},\n{OTHER},\n", 2, "the file ends within the array"),
        (f"[{GOOD},\n{OTHER}\n\n", 2, "the file ends within the array"),
        (f"[{GOOD},\n{OTHER},\n]", 3, "two jobs of the array are not separated by exactly one comma"),
        (f"[{GOOD},\n{OTHER}\n{GOOD}]", 3, "two jobs of the array are not separated by exactly one comma"),
        (f"[{GOOD},\n{OTHER},,{GOOD}]", 2, "two jobs of the array are not separated by exactly one comma"),
        (f"[{GOOD},{OTHER}]\n[{GOOD}]", 2, "text follows the array"),
        (f"[{GOOD},{OTHER}] garbage", 1, "text follows the array"),
    ],
)
def test_incomplete_array_is_reported_and_the_jobs_before_are_applied(
    database: Database, write: Write, content: str, line: int, told: str
) -> None:
    path = write("jobs.json", content)
    done = tidewheel(database, "apply", path)
    assert (done.code, done.out) == (1, "2 created, 0 updated, 0 unchanged, 1 rejected\n")
    assert done.err.startswith(f"{path}:{line}: {told}; write ")
    assert keys(database) == ["a", "b"]


def test_invalid_first_line_affects_no_other_line(database: Database, write: Write) -> None:
    path = write("jobs.jsonl", f"{GOOD[:-1]}\n{GOOD}\n{OTHER}\n")
    done = tidewheel(database, "apply", path)
    assert (done.code, done.out) == (1, "2 created, 0 updated, 0 unchanged, 1 rejected\n")
    assert done.err.startswith(f"{path}:1: not valid JSON")
    target = '{"key":"c","schedule":"manual","target":\n{"type":"shell","argv":["/bin/true"]}\n}'
    assert tidewheel(database, "apply", write("job.json", target)).lines[0].startswith("1 created")


@pytest.mark.parametrize("content", [f"{GOOD}\n{OTHER}\n", f"[{GOOD},\n{OTHER}]", f"- {GOOD}\n- {OTHER}\n"])
def test_byte_order_mark_is_ignored(database: Database, write: Write, content: str) -> None:
    done = tidewheel(database, "apply", write("jobs", "\ufeff" + content))
    assert done.lines == ["2 created, 0 updated, 0 unchanged, 0 rejected"]


@pytest.mark.parametrize("bulk", [(), ("--bulk",)], ids=["", "bulk"])
def test_missing_file_is_reported_before_a_job_is_applied(
    database: Database, write: Write, bulk: Sequence[str]
) -> None:
    done = tidewheel(database, "apply", *bulk, write("jobs.jsonl", GOOD), "nowhere.jsonl")
    assert done.refusals[0].startswith("FILE: nowhere.jsonl cannot be read")
    assert keys(database) == []


@pytest.mark.landing
@pytest.mark.parametrize("begun", ["[\n", "", GOOD + "\n"], ids=["array", "yaml", "lines"])
def test_applied_jobs_are_counted_if_the_rest_is_unreadable(database: Database, write: Write, begun: str) -> None:
    jobs = "".join(GOOD.replace('"a"', f'"job-{number}"') + "\n" for number in range(SUBMIT_BATCH))
    long = write("long", begun)
    os.truncate(long, MAX_WHOLE_BYTES + 1000)
    done = tidewheel(database, "apply", write("jobs.jsonl", jobs), long)
    assert done.code == ExitCode.REFUSED
    assert done.out == f"stopped; so far at least {SUBMIT_BATCH} created, 0 updated, 0 unchanged, 0 rejected\n"
    assert "too many to read at once; write one JSON object per line" in done.err


@pytest.mark.parametrize("bulk", [(), ("--bulk",)], ids=["", "bulk"])
def test_json_reports_an_interrupted_apply(database: Database, write: Write, bulk: Sequence[str]) -> None:
    whole = write("jobs.jsonl", f"{GOOD}\n{OTHER}\n")
    assert tidewheel(database, "apply", whole, *bulk, "--output", "json").json["stopped"] is False
    long = write("long", "[\n")
    os.truncate(long, MAX_WHOLE_BYTES + 1000)
    done = tidewheel(database, "apply", whole, long, *bulk, "--output", "json")
    assert done.code == ExitCode.REFUSED
    assert json.loads(done.out)["stopped"] is True


def test_bulk_counts_existing_jobs_and_leaves_them_unchanged(database: Database, write: Write) -> None:
    database.submit("b", target="another")
    path = write("jobs.jsonl", f"{GOOD}\n{OTHER}\n{OTHER}\n")
    bulk = ("apply", "--bulk", path)
    assert tidewheel(database, *bulk).lines == ["1 created, 2 existed, 0 rejected"]
    assert database.rows("SELECT version FROM jobs") == [(1,), (1,)]
    assert tidewheel(database, *bulk).lines == ["0 created, 3 existed, 0 rejected"]


def test_dry_run_names_each_field_and_ends_with_a_code_for_pending_changes(database: Database, write: Write) -> None:
    database.submit("a", schedule="@every 1m", target="send-email")
    path = write("jobs.jsonl", f"{GOOD}\n{OTHER}\n")
    done = tidewheel(database, "apply", path, "--dry-run", "--exit-code")
    assert (done.code, done.err) == (ExitCode.PENDING, "")
    assert done.out.splitlines() == [
        "a: would be updated",
        '  schedule.interval: "1m" -> "10s"',
        "b: would be created",
        "dry run, nothing stored: 1 created, 1 updated, 0 unchanged, 0 rejected",
    ]
    assert database.rows("SELECT key, version FROM jobs") == [("a", 1)]
    found = tidewheel(database, "apply", path, "--dry-run", "-o", "json").json
    assert found["changes"] == [
        {"key": "a", "change": "update", "fields": [{"path": "schedule.interval", "before": "1m", "after": "10s"}]},
        {"key": "b", "change": "create", "fields": []},
    ]
    assert tidewheel(database, "apply", path).code == 0
    [same] = json_diff(database, "a")
    assert same == {"path": "schedule.interval", "before": "1m", "after": "10s"}
    assert tidewheel(database, "apply", path, "--dry-run", "--exit-code").code == 0
    pruning = tidewheel(database, "apply", write("b.jsonl", OTHER), "--prune", "--all", "--dry-run", "--exit-code")
    assert (pruning.code, living(database)) == (ExitCode.PENDING, ["a", "b"])
    assert tidewheel(database, "apply", path, "--exit-code").refusals[0].startswith("--exit-code: needs --dry-run")


def json_diff(database: Database, key: str) -> list[object]:
    return list(tidewheel(database, "job", "diff", key, "1", "-o", "json").json["changes"])


@pytest.mark.parametrize("flags", [(), ("--dry-run",)], ids=["", "dry"])
def test_two_jobs_of_a_key_are_refused_with_both_places(database: Database, write: Write, flags: Sequence[str]) -> None:
    filler = "".join(GOOD.replace('"a"', f'"job-{number}"') + "\n" for number in range(SUBMIT_BATCH))
    child = '{"key":"c","schedule":{"after":["b"]},"target":"x"}'
    one = write("one.jsonl", f"{OTHER}\n{filler}{OTHER}\n{child}\n")
    two = write("two.yaml", "- {key: d, schedule: manual, target: x}\n- {key: c, schedule: manual, target: x}\n")
    done = tidewheel(database, "apply", one, two, *flags)
    assert done.code == ExitCode.FAILED
    assert done.err.splitlines()[:2] == [
        f"{one}:{SUBMIT_BATCH + 2}: key: 'b' is also the key of the job at {one}:1; remove one, or change its key",
        f"{one}:{SUBMIT_BATCH + 3}: key: 'c' is also the key of the job at {two}:2; remove one, or change its key",
    ]
    assert f"{SUBMIT_BATCH + 3} created, 0 updated, 0 unchanged, 2 rejected" in done.out


def test_jobs_beneath_a_name_are_refused_with_the_form_of_a_list(database: Database, write: Write) -> None:
    for form in ("jobs:\n- {key: a, schedule: manual, target: x}\n", '{"jobs": [{"key": "a"}]}'):
        path = write("jobs", form)
        told = tidewheel(database, "apply", path).err
        assert told.startswith(f"{path}:1: jobs: a file of jobs is a list; write the list itself, without `jobs:`: ")


def test_conflicting_flags_are_refused(database: Database, write: Write) -> None:
    path = write("jobs.jsonl", GOOD)
    assert tidewheel(database, "apply", path, "--bulk", "--dry-run").refusals[0].startswith("--dry-run: ")
    assert tidewheel(database, "apply", path, "--events").refusals[0].startswith("--events: ")


def test_unknown_tenant_is_reported_for_each_job(database: Database, write: Write) -> None:
    done = tidewheel(database, "apply", write("jobs.jsonl", GOOD), "--tenant", "nobody")
    assert (done.code, "there is no tenant 'nobody'" in done.err) == (1, True)


@pytest.mark.landing
def test_bulk_load_of_many_batches_is_whole(database: Database, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_DATABASE_URL", database.url)
    jobs = "".join(GOOD.replace('"a"', f'"job-{number}"') + "\n" for number in range(4500))
    done = process("apply", "--bulk", write("jobs.jsonl", jobs))
    assert (done.code, done.out, done.err) == (0, "4500 created, 0 existed, 0 rejected\n", "")
    assert database.count("timers") == 4500


def test_files_are_named_by_argument_or_flag(database: Database, write: Write) -> None:
    found = tidewheel(database, "apply", write("a.json", GOOD), "-f", write("b.json", OTHER), "--output", "json").json
    assert found["created"] == 2
    assert tidewheel(database, "apply").refusals[0].startswith("FILE: is missing")


TEAM = '{"key": "%s", "schedule": "manual", "target": "x", "labels": {"team": "billing"}}'


def test_prune_deletes_the_jobs_in_scope_that_no_file_has(database: Database, write: Write) -> None:
    path = write("jobs.jsonl", "\n".join([*(TEAM % key for key in ("kept", "gone")), OTHER]))
    assert tidewheel(database, "apply", path).code == 0
    path = write("jobs.jsonl", TEAM % "kept")
    dry = tidewheel(database, "apply", path, "--prune", "--label", "team=billing", "--dry-run")
    assert (dry.code, dry.err) == (0, "gone: would be deleted\n")
    assert living(database) == ["b", "gone", "kept"]
    done = tidewheel(database, "apply", path, "--prune", "--label", "team=billing")
    assert done.out == "0 created, 0 updated, 1 unchanged, 0 rejected, 1 deleted\n"
    assert living(database) == ["b", "kept"], "a job without the label is out of scope"
    assert tidewheel(database, "apply", path, "--prune", "--all").code == 0
    assert living(database) == ["kept"]


def test_many_pruned_jobs_are_deleted_by_the_batch_and_counted(database: Database, write: Write) -> None:
    many = [TEAM % f"gone-{number:03}" for number in range(2 * SUBMIT_BATCH + 1)]
    path = write("jobs.jsonl", "\n".join([*many, OTHER]))
    assert tidewheel(database, "apply", path).code == 0
    path = write("jobs.jsonl", OTHER)
    dry = tidewheel(database, "apply", path, "--prune", "--all", "--dry-run")
    assert dry.err == f"{len(many)} jobs would be deleted: -o json lists them\n"
    listed = json.loads(tidewheel(database, "apply", path, "--prune", "--all", "--dry-run", "-o", "json").out)["pruned"]
    assert (len(listed), listed[0]) == (len(many), "gone-000")
    done = tidewheel(database, "apply", path, "--prune", "--all")
    assert done.err == f"{len(many)} jobs deleted\n"
    assert done.out == f"0 created, 0 updated, 1 unchanged, 0 rejected, {len(many)} deleted\n"
    assert living(database) == ["b"]
    [found] = database.rows("SELECT count(*), count(DISTINCT xmin::text) FROM audit_log WHERE action = 'job.delete'")
    assert found == (len(many), 3), "each deletion has its entry, and a batch is one transaction"


def test_prune_needs_a_scope_and_files_without_a_mistake(database: Database, write: Write) -> None:
    assert tidewheel(database, "apply", write("jobs.jsonl", OTHER)).code == 0
    good = write("good.jsonl", GOOD)
    refused = (("--prune",), ("--prune", "--all", "--prefix", "a"), ("--prefix", "a"), ("--bulk", "--prune", "--all"))
    for flags in refused:
        assert tidewheel(database, "apply", good, *flags).code == ExitCode.REFUSED
    rejected = tidewheel(database, "apply", write("bad.jsonl", f'{GOOD}\n{{"key": 1}}'), "--prune", "--all")
    assert rejected.code == ExitCode.FAILED
    assert "nothing pruned: a job was rejected" in rejected.err
    for empty in ("", "\n [ ]\n"):
        none = tidewheel(database, "apply", write("empty", empty), "--prune", "--all")
        assert "the files contain no jobs" in none.err
    assert living(database) == ["a", "b"]


def living(database: Database) -> list[str]:
    """Return the keys of the jobs that are not deleted."""
    return [key for (key,) in database.rows("SELECT key FROM jobs WHERE deleted_at IS NULL ORDER BY key")]


def test_cron_jobs_of_kubernetes_are_applied_with_notes(database: Database) -> None:
    """Issue 39, A3."""
    for bulk in ((), ("--bulk",)):
        done = tidewheel(database, "apply", str(FOREIGN / "helm-template.yaml"), *bulk)
        assert keys(database) == ["release-name-report", "release-name-vacuum"]
        assert "concurrencyPolicy Replace is overlap cancel_other" in done.err
    tidewheel(database, "job", "create", "--file", str(FOREIGN / "kubectl-get.json"))
    assert keys(database)[0] == "backup"
