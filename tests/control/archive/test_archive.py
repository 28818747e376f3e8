"""Days are archived in whole; runs are found by id; deleted tenants leave the files."""

import io
import re
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID

import fastavro
import pytest

from tests.control.api.answering import answer_of, answering
from tests.control.cli.command import json_output, process, tidewheel
from tests.fixtures.acts import EXECUTOR, ending
from tests.fixtures.database import ClockedDatabase
from tests.strict_types import ROOT
from tidewheel.control.archive import containers, export
from tidewheel.control.archive.days import locked_archive, read_manifest
from tidewheel.control.archive.lookup import find_record
from tidewheel.control.archive.stores import FolderStore, ManifestChanged
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.client.client import Client
from tidewheel.errors import ArchiveDamaged, Refused
from tidewheel.postgres.partitions import StoredDay, day_of, drop_day, stored_days
from tidewheel.process.service import Shutdown
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.scheduler.retention import Retention
from tidewheel.scheduler.retention_rules import periods_of
from tidewheel.settings.services import SchedulerSettings
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.requeue import Requeue, requeue_runs

DAY = timedelta(days=1)
LOST = (
    "executor_id", "executor", "claimed_from", "result", "dead_letter", "progress", "progress_at", "checkpoint",
    "payload",
)  # fmt: skip
# Runs that ended on a day, of several tenants, each with an id of that day.
ADD_RUNS: LiteralString = """
INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at,
                           created_at, started_at, finished_at, state, attempt)
SELECT overlay(gen_random_uuid()::text PLACING left(id.prefix, 8) || '-' || right(id.prefix, 4) FROM 1 FOR 13)::uuid,
       gen_random_uuid(), tenant.name, 1, 0, 'timer', 'default', 'standard', %(at)s, 'infinity', %(at)s, %(at)s, %(at)s,
       'succeeded', 1
  FROM unnest(%(tenants)s::text[]) AS tenant (name), generate_series(1, %(runs)s),
       (SELECT lpad(to_hex((extract(epoch FROM %(at)s::timestamptz) * 1000)::bigint), 12, '0')) AS id (prefix)
"""
# A deletion whose rows are removed, and whose time of reservation is over.
_DELETED: LiteralString = """
INSERT INTO tenant_deletions (tenant, created_at, state, finished_at, free_at)
VALUES (%s, tidewheel_now(), 'removed', tidewheel_now(), tidewheel_now() - interval '1 s') ON CONFLICT DO NOTHING
"""


@pytest.fixture
def day(clocked: ClockedDatabase) -> date:
    """A day that is over once `close` has moved the clock."""
    today = day_of(clocked.now())
    clocked.stop_clock(datetime.combine(today, time(12), UTC))
    return today


@pytest.fixture(autouse=True)
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the archive."""
    folder = tmp_path / "archive"
    monkeypatch.setenv("TIDEWHEEL_ARCHIVE", str(folder))
    return folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few rows, and files of a few blocks."""
    monkeypatch.setattr(export, "_PAGE_ROWS", 7)
    monkeypatch.setattr(containers, "PART_BYTES", 4000)


def close(database: ClockedDatabase) -> Any:  # noqa: ANN401 - as json.loads
    """Let the day pass, and archive it."""
    pass_day(database)
    return json_output(database, "admin", "archive", "run")


def pass_day(database: ClockedDatabase, by: timedelta = 2 * DAY) -> list[StoredDay]:
    """Let the day pass, and let retention close it; return what retention drops."""
    database.advance(by)
    retention = Retention(database.url, periods_of(SchedulerSettings.load()), Shutdown())
    dropped = retention.step()
    retention.close()
    return dropped


def drop(database: ClockedDatabase, day: date) -> None:
    """Drop the partitions of a day, as retention does."""
    connection = database.connection(autocommit=True)
    for stored in stored_days(connection):
        if stored.day == day:
            drop_day(connection, stored)


def forget(database: ClockedDatabase, day: date) -> None:
    """Delete the record of an archived day."""
    database.execute("DELETE FROM archived_days WHERE day = %s", [day])


def shown(database: ClockedDatabase, run_id: UUID) -> dict[str, Any]:
    return json_output(database, "run", "show", run_id)


def failed(database: ClockedDatabase) -> UUID:
    started = database.begun(payload={"to": "a"}, labels={"run": "own"}, request_id="r-1")
    database.requeue(started, AttemptOutcome.FAILED)
    again = database.begin(started.run_id)
    database.end(ending(again, RunState.FAILED, error_type="ValueError", error_message="no"))
    return started.run_id


def timed_out_between_attempts(database: ClockedDatabase) -> UUID:
    started, no_delay = database.begun(), timedelta(0)
    failure = Requeue(started.run_id, started.attempt, EXECUTOR, AttemptOutcome.FAILED, no_delay, "ValueError", "no")
    assert database.within(requeue_runs, database.installation, [failure]).runs
    error_type = "timeout_schedule_to_close"
    late = RunEnd(started.run_id, started.attempt, RunState.TIMED_OUT, error_type=error_type, error_message="too late")
    database.end(late)
    return started.run_id


def files(archive: Path, day: date, kind: str = "") -> list[Path]:
    return sorted((archive / "days" / str(day)).glob(f"{kind}*.avro"))


def tenants_of(archive: Path, day: date) -> list[str]:
    """Return the tenant of each run of a day, as any reader of Avro finds it."""
    found: list[str] = []
    for path in files(archive, day, "runs"):
        with path.open("rb") as file:
            found += [record["tenant"] for record in fastavro.reader(file)]  # type: ignore[index,call-overload,misc]
    return found


@pytest.mark.landing
def test_archived_run_is_found_by_its_id_through_every_door(clocked: ClockedDatabase, archive: Path, day: date) -> None:
    clocked.submit(labels={"team": "billing"}, retry={"max_attempts": 2})
    started = clocked.begun()
    clocked.succeed(started)
    bad, open_run, late = failed(clocked), clocked.trigger(delay="2h"), timed_out_between_attempts(clocked)
    before = {run_id: shown(clocked, run_id) for run_id in (started.run_id, bad)}
    assert shown(clocked, late)["error_message"] == "too late"
    done = close(clocked)
    assert {each["day"]: each["runs"] for each in done["archived"]}[str(day)] == 3
    assert not before[bad]["archived"]
    assert json_output(clocked, "admin", "archive", "show", bad)["archived"]
    drop(clocked, day)
    for run_id, document in before.items():
        kept = {name: value for name, value in document.items() if name not in LOST}
        now = shown(clocked, run_id)
        lost = dict.fromkeys(("trace", "output", "output_bytes", "result"))
        attempts = [each | lost for each in document["attempts"]]
        assert {name: now[name] for name in kept} == {**kept, "attempts": attempts, "archived": True}
    assert shown(clocked, late)["error_message"] is None, "the archive has the messages of attempts alone"
    assert shown(clocked, open_run)["archived"] is False
    lines = tidewheel(clocked, "run", "show", bad).lines
    assert any(line.startswith("archived ") for line in lines)
    assert "ValueError" in tidewheel(clocked, "run", "attempts", bad).out
    assert clocked.client.runs.detail(bad).archived
    clocked.client.tenants.create("acme")
    assert tidewheel(clocked, "run", "show", bad, "--tenant", "acme").refusal.startswith("run_id: there is no run")
    with answering(clocked, archive=str(archive)) as api:
        document = answer_of(api.get(f"/api/v1/runs/{bad}"))
        assert (document["archived"], document["status"], len(document["attempts"])) == (True, "failed", 2)
        assert answer_of(api.get(f"/api/v1/runs/{open_run}"))["archived"] is False
        unknown = UUID(int=bad.int ^ 1)
        assert api.get(f"/api/v1/runs/{unknown}").status_code == HTTPStatus.NOT_FOUND


@pytest.mark.landing
def test_verify_finds_each_flipped_bit_missing_and_added_file(
    clocked: ClockedDatabase, archive: Path, day: date, small: None
) -> None:
    clocked.submit()
    clocked.execute(ADD_RUNS, {"at": clocked.now(), "tenants": ["default", "acme"], "runs": 30})
    close(clocked)
    assert tidewheel(clocked, "admin", "archive", "verify").lines[-1].endswith(": all intact")
    paths = [*files(archive, day), archive / "days" / str(day) / "manifest.json"]
    assert len(paths) > 3
    for path in paths:
        whole = path.read_bytes()
        for place in (0, len(whole) // 2):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            done = tidewheel(clocked, "admin", "archive", "verify", day)
            assert (done.code, path.name in done.out) == (ExitCode.FAILED, True), done
        path.write_bytes(whole[:-1])
        assert tidewheel(clocked, "admin", "archive", "verify", day).code == ExitCode.FAILED
        path.unlink()
        assert f"{path.name} is missing" in tidewheel(clocked, "admin", "archive", "verify", day).out
        path.write_bytes(whole)
    added = paths[0].with_name("runs-9999-0.avro")
    added.write_bytes(b"")
    found = tidewheel(clocked, "admin", "archive", "verify")
    assert (found.code, "not named in" in found.out) == (ExitCode.FAILED, True)
    with locked_archive(clocked.url):
        assert tidewheel(clocked, "admin", "archive", "verify").code == 0  # it may be a file of the writer
    added.unlink()
    assert tidewheel(clocked, "admin", "archive", "verify").code == 0
    for path in files(archive, day, "runs"):
        whole = path.read_bytes()
        path.write_bytes(whole[:-20] + b"\0\0\0" + whole[-17:])
    damaged = [
        done
        for (run_id,) in clocked.rows("SELECT run_id FROM finished_runs WHERE tenant = 'acme'")
        if (done := tidewheel(clocked, "admin", "archive", "show", run_id, "--tenant", "acme")).code
    ]
    assert damaged
    assert all("checksum differs" in done.err.replace("\n  ", " ") for done in damaged)


@pytest.mark.landing
def test_repeat_writes_the_same_files_and_adopts_what_stands(
    clocked: ClockedDatabase, archive: Path, day: date, small: None
) -> None:
    clocked.submit()
    failed(clocked)
    clocked.execute(ADD_RUNS, {"at": clocked.now(), "tenants": ["default"], "runs": 20})
    close(clocked)
    assert json_output(clocked, "admin", "archive", "run")["archived"] == []
    written = {path.name: path.read_bytes() for path in files(archive, day)}
    forget(clocked, day)  # as after a death before the last step
    assert json_output(clocked, "admin", "archive", "run")["adopted"] == [str(day)]
    for each in (day - DAY, day, day + DAY):
        forget(clocked, each)
    for each in (archive / "days").glob("*/manifest.json"):
        each.unlink()
    (archive / "days" / str(day) / "runs-0000-0123.avro").write_bytes(b"left behind")
    json_output(clocked, "admin", "archive", "run")
    assert {path.name: path.read_bytes() for path in files(archive, day)} == written
    forget(clocked, day)
    at = clocked.value("SELECT min(finished_at) FROM finished_runs")
    clocked.execute("DELETE FROM finished_runs WHERE run_id = (SELECT run_id FROM finished_runs LIMIT 1)")
    assert json_output(clocked, "admin", "archive", "run")["adopted"] == [str(day)], (
        "the period of a tenant may have removed it"
    )
    forget(clocked, day)
    clocked.execute(ADD_RUNS, {"at": at, "tenants": ["default"], "runs": 2})
    [refused] = tidewheel(clocked, "admin", "archive", "run").refusals
    assert refused.startswith(f"the archive has {day} with 21 runs of default, but the database has 22; move the")


@pytest.mark.landing
def test_first_day_is_whole_whatever_retention_does(
    clocked: ClockedDatabase, archive: Path, day: date, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocked.execute(ADD_RUNS, {"at": clocked.now() - DAY, "tenants": ["acme"], "runs": 2})
    pass_day(clocked)
    closed = containers.Parts.close

    def close_runs(parts: containers.Parts) -> None:
        closed(parts)
        assert pass_day(clocked, 100 * DAY) == [], "a pass began before the first day was recorded"
        clocked.execute("DELETE FROM finished_runs WHERE tenant = 'acme'")

    monkeypatch.setattr(containers.Parts, "close", close_runs)
    failure = tidewheel(clocked, "admin", "archive", "run").err
    assert f"{day - DAY} has 0 runs of acme, but 2 were read; repeat the command" in failure
    monkeypatch.setattr(containers.Parts, "close", closed)
    json_output(clocked, "admin", "archive", "run")
    assert ("finished_runs", day - DAY) in {(each.table, each.day) for each in pass_day(clocked, DAY)}


@pytest.mark.landing
def test_forgotten_archive_is_adopted_with_the_days_that_are_dropped(
    clocked: ClockedDatabase, archive: Path, day: date, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocked.submit()
    bad = failed(clocked)
    close(clocked)
    json_output(clocked, "admin", "archive", "forget", "--yes")
    assert ("finished_runs", day) in {(each.table, each.day) for each in pass_day(clocked, 200 * DAY)}
    assert shown(clocked, bad)["copied"]
    assert str(day) in json_output(clocked, "admin", "archive", "run")["adopted"]
    assert shown(clocked, bad)["archived"]
    json_output(clocked, "admin", "archive", "forget", "--yes")
    monkeypatch.setenv("TIDEWHEEL_ARCHIVE_RETENTION", "10d")
    assert str(day) in json_output(clocked, "admin", "archive", "run")["removed"]
    json_output(clocked, "admin", "archive", "forget", "--yes")
    assert str(day) not in json_output(clocked, "admin", "archive", "run")["adopted"], "its runs are removed"


@pytest.mark.landing
def test_reader_of_a_day_that_is_rewritten_finds_its_run(clocked: ClockedDatabase, archive: Path, day: date) -> None:
    clocked.submit()
    bad = failed(clocked)
    clocked.execute(ADD_RUNS, {"at": clocked.now(), "tenants": ["acme"], "runs": 1})
    close(clocked)

    class Rewritten(FolderStore):
        def read(self, name: str, span: tuple[int, int] | None = None) -> bytes:
            if name.endswith(".avro"):
                clocked.execute(_DELETED, ["acme"])
                json_output(clocked, "admin", "archive", "run")
            return super().read(name, span)

    found = find_record(Rewritten(archive), [day], "default", bad)
    assert found is not None
    assert found["state"] == "failed"
    files(archive, day, "runs")[0].unlink()
    with pytest.raises(ArchiveDamaged, match="the file is missing"):
        find_record(FolderStore(archive), [day], "default", bad)


@pytest.mark.landing
def test_day_is_dropped_only_when_it_is_closed_and_archived(clocked: ClockedDatabase, day: date) -> None:
    """`complete_in` writes an end that its caller may commit hours later."""
    clocked.submit()
    pass_day(clocked, timedelta(0))
    assert [each["day"] for each in json_output(clocked, "admin", "archive", "run")["archived"]] == [str(day - DAY)]
    late = clocked.connection()
    late.execute(ADD_RUNS, {"at": clocked.now(), "tenants": ["default"], "runs": 1})
    assert pass_day(clocked, 200 * DAY) == []
    assert json_output(clocked, "admin", "archive", "run")["archived"] == []
    late.commit()
    assert pass_day(clocked, DAY) == []
    done = json_output(clocked, "admin", "archive", "run")["archived"]
    assert {each["day"]: each["runs"] for each in done}[str(day)] == 1
    assert ("finished_runs", day) in {(each.table, each.day) for each in pass_day(clocked, DAY)}


@pytest.mark.landing
@pytest.mark.usefixtures("day")  # yesterday closes some time after midnight
def test_folder_without_the_last_day_is_not_the_archive(
    clocked: ClockedDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is not mounted: a day that is written there leaves the database."""
    clocked.submit()
    pass_day(clocked, timedelta(0))
    assert json_output(clocked, "admin", "archive", "run")["archived"]
    other = tmp_path / "other"
    monkeypatch.setenv("TIDEWHEEL_ARCHIVE", str(other))
    done = tidewheel(clocked, "admin", "archive", "run")
    assert (done.code, other.exists()) == (1, False), done
    assert "recorded: mount the folder, correct TIDEWHEEL_ARCHIVE" in done.err.replace("\n  ", " ")


@pytest.mark.landing
def test_deleted_tenant_leaves_the_archive(clocked: ClockedDatabase, archive: Path, day: date, small: None) -> None:
    names = ["a-1", "acme", "Acme", "default"]
    clocked.submit()
    clocked.execute(ADD_RUNS, {"at": clocked.now(), "tenants": names, "runs": 25})
    close(clocked)
    json_output(clocked, "admin", "archive", "restore", day)
    untouched = {path.name for path in files(archive, day)}
    clocked.execute(_DELETED, ["acme"])
    pass_day(clocked, timedelta(0))
    with Client(clocked.url) as client, pytest.raises(Refused, match="its runs may still be in the archive"):
        client.tenants.create("acme")
    assert json_output(clocked, "admin", "archive", "run")["tenants"] == ["acme"]
    assert json_output(clocked, "admin", "archive", "run")["tenants"] == []
    assert clocked.client.tenants.create("acme")
    left = tenants_of(archive, day)
    assert {name: left.count(name) for name in names} == {"a-1": 25, "acme": 0, "Acme": 25, "default": 25}
    assert untouched & {path.name for path in files(archive, day)}, "every file was written again"
    assert not any(b"acme" in path.read_bytes() for path in files(archive, day)[0].parent.iterdir())
    assert tidewheel(clocked, "admin", "archive", "verify").code == 0
    assert clocked.value("SELECT count(*) FROM tidewheel_archive.finished_runs WHERE tenant = 'acme'") == 0
    for run_id, tenant in clocked.rows("SELECT run_id, tenant FROM finished_runs ORDER BY md5(run_id::text) LIMIT 30"):
        found = tidewheel(clocked, "admin", "archive", "show", run_id, "--tenant", tenant)
        assert found.code == (ExitCode.NOT_FOUND if tenant == "acme" else 0)


@pytest.mark.landing
def test_restored_day_is_readable_by_sql_with_its_facts(clocked: ClockedDatabase, archive: Path, day: date) -> None:
    clocked.submit(labels={"team": "billing"})
    bad = failed(clocked)
    close(clocked)
    drop(clocked, day)
    for _ in range(2):
        assert json_output(clocked, "admin", "archive", "restore", day) == {"day": str(day), "runs": 1}
    rows = clocked.rows("SELECT run_id, state, job_key FROM tidewheel_archive.finished_runs")
    assert rows == [(bad, "failed", "job")]
    assert clocked.value("SELECT payload FROM tidewheel_archive.run_inputs") == b'{"to":"a"}'
    assert clocked.rows("SELECT outcome FROM tidewheel_archive.attempts ORDER BY attempt") == [("failed",), ("failed",)]
    same: LiteralString = """
    SELECT (jsonb_populate_record(NULL::job_versions, f.row)).definition = v.definition
      FROM tidewheel_archive.facts AS f JOIN job_versions AS v ON v.job_id = f.job_id WHERE f.kind = 'job_versions'
    """
    assert clocked.rows(same) == [(True,)]
    json_output(clocked, "admin", "archive", "restore", "--drop")
    assert clocked.value("SELECT to_regnamespace('tidewheel_archive') IS NULL")
    [refused] = tidewheel(clocked, "admin", "archive", "restore", "2020-02-02").refusals
    assert refused.startswith("DAY: the archive has no day 2020-02-02")


@pytest.mark.landing
def test_unread_archive_is_named_where_a_run_is_missing(
    clocked: ClockedDatabase, day: date, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database knows the archived days, also where no setting names the archive."""
    clocked.submit()
    started = clocked.begun()
    clocked.succeed(started)
    close(clocked)
    drop(clocked, day)
    monkeypatch.delenv("TIDEWHEEL_ARCHIVE")
    done = tidewheel(clocked, "run", "show", started.run_id)
    assert done.code == ExitCode.NOT_FOUND
    assert f"it may be in the archived days {day}; set TIDEWHEEL_ARCHIVE" in done.refusal
    with answering(clocked) as api:
        answer = api.get(f"/api/v1/runs/{started.run_id}")
        assert (answer.status_code, "TIDEWHEEL_ARCHIVE" in answer.text) == (HTTPStatus.NOT_FOUND, True)
    assert "archive" not in tidewheel(clocked, "run", "show", UUID(int=1)).refusal, "no archived day has ids of 1970"


def test_restore_from_a_wrong_folder_names_folder_and_setting(
    clocked: ClockedDatabase, day: date, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocked.submit()
    close(clocked)
    monkeypatch.setenv("TIDEWHEEL_ARCHIVE", str(tmp_path / "other"))
    done = tidewheel(clocked, "admin", "archive", "restore", day)
    text = done.err.replace("\n  ", " ")
    assert done.code == ExitCode.FAILED
    assert f"{tmp_path / 'other'} lacks {day}, which the database has recorded" in text
    assert "correct TIDEWHEEL_ARCHIVE" in text


@pytest.mark.landing
def test_drop_of_a_day_that_is_not_restored_is_refused(clocked: ClockedDatabase, archive: Path, day: date) -> None:
    clocked.submit()
    clocked.execute(ADD_RUNS, {"at": clocked.now(), "tenants": ["default"], "runs": 2})
    close(clocked)
    for _ in range(2):
        done = tidewheel(clocked, "admin", "archive", "restore", day, "--drop")
        assert done.code == ExitCode.REFUSED, done
        assert done.refusals[0].startswith(f"DAY: no rows of {day} are restored; ")
        json_output(clocked, "admin", "archive", "restore", day)
        other = tidewheel(clocked, "admin", "archive", "restore", "2020-02-02", "--drop")
        assert (other.code, "2020-02-02" in other.err) == (ExitCode.REFUSED, True)
        assert json_output(clocked, "admin", "archive", "restore", day, "--drop") == {"dropped": str(day)}
        assert clocked.value("SELECT count(*) FROM tidewheel_archive.finished_runs") == 0


@pytest.mark.landing
@pytest.mark.parametrize("text", [b"{", b"{}", b"\xff"])
def test_damaged_manifest_has_a_remedy(clocked: ClockedDatabase, archive: Path, day: date, text: bytes) -> None:
    clocked.submit()
    close(clocked)
    path = archive / "days" / str(day) / "manifest.json"
    whole = path.read_bytes()
    for bad in (text, whole[:-2] + b"\n", whole.replace(b'"runs":0', b'"runs":1')):
        assert bad != whole
        path.write_bytes(bad)
        done = tidewheel(clocked, "admin", "archive", "restore", day)
        assert done.code == ExitCode.FAILED, done
        assert "restore it from a copy; `tidewheel admin archive verify` lists" in done.err.replace("\n  ", " ")
    path.write_bytes(whole)
    json_output(clocked, "admin", "archive", "restore", day)


@pytest.mark.landing
@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "..", "a/b", ""])
def test_manifest_names_no_file_beyond_its_folder(
    clocked: ClockedDatabase, archive: Path, day: date, name: str
) -> None:
    """Its own checksum proves nothing: who can write it can compute that too."""
    clocked.submit()
    close(clocked)
    folder = archive / "days" / str(day)
    whole = read_manifest(str(day), (folder / "manifest.json").read_bytes())
    first, *others = whole.files
    (archive / "secret").write_bytes((folder / first.name).read_bytes())
    (folder / "manifest.json").write_bytes(replace(whole, files=(replace(first, name=name), *others)).encode())
    done = tidewheel(clocked, "admin", "archive", "restore", day)
    assert (done.code, "which is not in its folder" in done.err.replace("\n  ", " ")) == (ExitCode.FAILED, True)


def test_example_reads_a_day(
    clocked: ClockedDatabase, archive: Path, day: date, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/archive.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    clocked.submit()
    failed(clocked)
    close(clocked)
    monkeypatch.chdir(archive)
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(example.replace("2026-11-20", str(day)), "docs/archive.md", "exec"), {})  # noqa: S102 - the page's code
    assert out.getvalue() == "job failed 2\n"


def test_days_beyond_the_period_leave_their_facts(
    clocked: ClockedDatabase, archive: Path, day: date, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocked.submit()
    bad = failed(clocked)
    monkeypatch.setenv("TIDEWHEEL_ARCHIVE_RETENTION", "10d")
    close(clocked)
    clocked.advance(20 * DAY)
    assert str(day) not in json_output(clocked, "admin", "archive", "run")["removed"], "the database has its partition"
    drop(clocked, day)
    assert str(day) in json_output(clocked, "admin", "archive", "run")["removed"]
    assert [path.name[:5] for path in files(archive, day)] == ["facts"], "a later day may need its versions"
    assert tidewheel(clocked, "admin", "archive", "verify").code == 0
    assert tidewheel(clocked, "admin", "archive", "show", bad).code == ExitCode.NOT_FOUND


def test_manifest_of_another_writer_is_not_replaced(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.write_manifest("2026-11-20", b"1", None)
    for replaces in (None, b"0"):
        with pytest.raises(ManifestChanged):
            store.write_manifest("2026-11-20", b"2", replaces)
    store.write_manifest("2026-11-20", b"2", b"1")
    assert store.read("2026-11-20/manifest.json") == b"2"


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("point", ["archiving.before_manifest", "archiving.before_record"])
def test_killed_archiver_is_continued_by_the_next_one(
    point: str, clocked: ClockedDatabase, archive: Path, day: date, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocked.submit()
    bad = failed(clocked)
    pass_day(clocked)
    monkeypatch.setenv("TIDEWHEEL_DATABASE_URL", clocked.url)
    monkeypatch.setenv("TIDEWHEEL_FAILPOINT", f"{point}:exit:2")
    assert process("admin", "archive", "run").code < 0
    monkeypatch.delenv("TIDEWHEEL_FAILPOINT")
    assert clocked.count("archived_days") == 1
    json_output(clocked, "admin", "archive", "run")
    assert tidewheel(clocked, "admin", "archive", "verify").code == 0
    assert json_output(clocked, "admin", "archive", "show", bad)["status"] == "failed"
