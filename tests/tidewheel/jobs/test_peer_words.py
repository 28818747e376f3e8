"""Words of other schedulers: the refusal of a field or a value names Tidewheel's."""

import pytest

from tidewheel.errors import InvalidInput
from tidewheel.jobs.parsing import parse_request


def refused(document: dict[str, object]) -> dict[str, str]:
    """Return the remedy for each refused field."""
    with pytest.raises(InvalidInput) as refusal:
        parse_request(document)
    return {error.path: error.remedy for error in refusal.value.errors}


def submitted(**job: object) -> dict[str, str]:
    """Return the remedies of a job."""
    document = {"key": "k", "schedule": "manual", "target": "h", **job}
    found = refused({"type": "job.submit", "job": document})
    return {path.removeprefix("job."): remedy for path, remedy in found.items()}


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("concurrencyPolicy", "overlap"),  # Kubernetes
        ("MaxAttempts", "max_attempts"),  # River
        ("ScheduledAt", "run_at"),  # which a trigger has
        ("misfireInstruction", "catch_up"),  # Quartz
        ("rrule", "cron"),  # iCalendar
        ("timeout", "start_to_close"),
        ("depends_on", "after"),
        ("workspace_id", "tenant: write it beside job"),
        ("enabled", "paused: true"),
    ],
)
def test_refusal_of_a_peers_field_names_ours(word: str, ours: str) -> None:
    assert ours in submitted(**{word: "x"})[word]


@pytest.mark.parametrize(
    ("word", "ours"),
    [("timeout_sec", "start_to_close"), ("expression", "schedule.cron"), ("enabled", "paused"), ("name", "key")],
)
def test_peers_field_of_a_job_beside_it_is_sent_into_the_job(word: str, ours: str) -> None:
    job = {"key": "k", "schedule": "manual", "target": "h"}
    assert refused({"type": "job.submit", "job": job, word: "x"}) == {word: f"it is {ours}: write it inside job"}


def test_tenant_of_a_peer_is_a_field_of_the_request() -> None:
    run = {"ref": "a", "key": "k", "workspace_id": "w"}
    assert "tenant of the request" in refused({"type": "batch.submit", "runs": [run]})["runs.0.workspace_id"]
    trigger: dict[str, object] = {"type": "job.trigger", "key": "k", "workspace_id": "w"}
    assert refused(trigger) == {"workspace_id": "write it as tenant"}


def test_other_bodies_name_no_field_of_a_job() -> None:
    assert (
        "of the job"
        not in refused({"type": "freeze", "scope": "queue", "key": "q", "concurrencyPolicy": "x"})["concurrencyPolicy"]
    )


def test_field_inside_its_own_object_is_named_alone() -> None:
    assert submitted(retry={"maximumAttempts": 3})["retry.maximumAttempts"].startswith("write it as max_attempts")
    assert submitted(schedule={"cron": "0 8 * * *", "tz": "UTC"})["schedule.tz"] == "write it as timezone"
    assert "write it as cron" in submitted(schedule={"cronExpression": "0 8 * * *"})["schedule"]
    assert submitted(schedule={"execution_time": "2030-01-01T00:00:00Z"})["schedule"] == "write it as once"
    remedies = refused({"type": "job.trigger", "key": "k", "args": [1], "countdown": 5})
    assert remedies == {"args": "write it as payload", "countdown": "write it as delay"}


@pytest.mark.parametrize(
    ("value", "ours"),
    [("Forbid", "skip"), ("Replace", "cancel_other"), ("Allow", "allow_all"),
     ("SCHEDULE_OVERLAP_POLICY_BUFFER_ONE", "buffer_one"), ("BufferAll", "buffer_all")],
)  # fmt: skip
def test_refusal_of_a_peers_overlap_policy_names_ours(value: str, ours: str) -> None:
    assert submitted(overlap=value)["overlap"] == f"did you mean {ours!r}?"


def test_our_own_word_is_known_in_any_spelling() -> None:
    for word, ours in (("startAt", "start_at"), ("onFailure", "on_failure"), ("max-attempts", "max_attempts")):
        assert ours in submitted(**{word: 1})[word]
