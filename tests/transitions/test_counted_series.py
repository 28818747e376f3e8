"""Series of jobs and of errors are counted after the commit, and bounded."""

from collections import Counter

import pytest
from prometheus_client import REGISTRY

from tests.fixtures.acts import ending
from tests.fixtures.database import Database
from tidewheel.process import metrics
from tidewheel.process.metrics import BoundedLabels
from tidewheel.runs import RunState
from tidewheel.transitions.finish import finish_runs


def counted(name: str) -> Counter[tuple[str, ...]]:
    return Counter(
        {
            tuple(sample.labels.values()): int(sample.value)
            for family in REGISTRY.collect()
            for sample in family.samples
            if sample.name == f"tidewheel_{name}_total"
        }
    )


def end(database: Database, key: str, state: RunState, error: str | None = None) -> None:
    started = database.begun(key)
    with database.session().transaction() as connection:
        finish_runs(connection, database.installation, [ending(started, state, error_type=error)])


def test_jobs_beyond_the_limit_share_a_series(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    before = counted("job_runs_ended")
    for key in ("first", "second", "third"):
        database.submit(key)
    end(database, "first", RunState.SUCCEEDED)
    assert counted("job_runs_ended") == before, "no job has a series unless an operator asks for it"
    monkeypatch.setattr(metrics, "job_labels", BoundedLabels(1))
    end(database, "first", RunState.SUCCEEDED)
    end(database, "second", RunState.SUCCEEDED)
    end(database, "third", RunState.FAILED, "ValueError")
    end(database, "first", RunState.FAILED, "ValueError")
    assert counted("job_runs_ended") - before == {
        ("default", "first", "succeeded"): 1,
        ("default", "first", "failed"): 1,
        ("other", "other", "succeeded"): 1,
        ("other", "other", "failed"): 1,
    }


def test_errors_are_counted_by_type(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_error_labels", BoundedLabels(1))
    database.submit("job")
    before = counted("attempt_errors")
    end(database, "job", RunState.FAILED, "ValueError")
    end(database, "job", RunState.FAILED, "KeyError")
    end(database, "job", RunState.SUCCEEDED)
    assert counted("attempt_errors") - before == {("ValueError",): 1, ("other",): 1}
