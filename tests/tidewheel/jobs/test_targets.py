"""Targets as submitted: valid ones reach executors unchanged, invalid ones are refused by path."""

import json
from typing import Any

import pytest

from tests.tidewheel.jobs.submitting import refused_job, submitted
from tidewheel.jobs.spec import canonical_spec
from tidewheel.schemas.definitions import definition_record, needs
from tidewheel.schemas.generated.records import HttpTarget, KafkaTarget, LambdaTarget, ShellTarget, Target, TargetKind

DAY_MS = 24 * 60 * 60 * 1000
ARN = "arn:aws:lambda:eu-west-1:123456789012:function:report"


def carried(target: object) -> Target:
    """A target as executors get it."""
    return definition_record(submitted(target=target), tenant="default", job_id="0", job_version=1).target


@pytest.mark.parametrize(
    ("target", "part"),
    [
        (
            {"type": "http", "url": "http://a", "async": True},
            {"http": HttpTarget(method="POST", url="http://a", headers={}, async_timeout_ms=DAY_MS)},
        ),
        (
            {"type": "http", "url": "http://a", "headers": {"Authorization": {"secret": "BILLING"}, "X-A": "1"}},
            {
                "http": HttpTarget(
                    method="POST",
                    url="http://a",
                    headers={"X-A": "1"},
                    async_timeout_ms=None,
                    secret_headers={"Authorization": "BILLING"},
                )
            },
        ),
        (
            {"type": "kafka", "topic": "orders", "await_reply": True, "reply_timeout": "1m"},
            {"kafka": KafkaTarget(topic="orders", key=None, headers={}, reply_timeout_ms=60_000)},
        ),
        (
            {"type": "kafka", "topic": "orders", "key": "ann", "headers": {"a": "b"}},
            {"kafka": KafkaTarget(topic="orders", key="ann", headers={"a": "b"}, reply_timeout_ms=None)},
        ),
        (
            {"type": "shell", "argv": ["/bin/report", "; rm", ""], "cwd": "/srv", "env": {"A": "b"}, "cpu_seconds": 9},
            {
                "shell": ShellTarget(
                    argv=("/bin/report", "; rm", ""), cwd="/srv", env={"A": "b"}, memory_bytes=None, cpu_seconds=9
                )
            },
        ),
        (
            {"type": "lambda", "function": ARN, "qualifier": "live"},
            {"aws_lambda": LambdaTarget(function=ARN, qualifier="live", region=None)},
        ),
    ],
)
def test_target_reaches_executors_unchanged(target: dict[str, Any], part: dict[str, Any]) -> None:
    assert carried(target) == Target(kind=TargetKind(target["type"]), **part)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("send-email", "send-email"),
        ({"type": "http", "url": "http://a"}, "tidewheel.http"),
        ({"type": "kafka", "topic": "orders"}, "tidewheel.kafka"),
        ({"type": "shell", "argv": ["/bin/true"]}, "tidewheel.shell"),
        ({"type": "lambda", "function": "report"}, "tidewheel.lambda"),
    ],
)
def test_requirement_of_a_target_is_one_name(target: object, name: str | None) -> None:
    assert needs(carried(target)) == name


@pytest.mark.parametrize(
    ("target", "path", "words"),
    [
        ({"type": "shell"}, "job.target.argv", "is missing"),
        ({"type": "shell", "argv": []}, "job.target.argv", "write 1 to 1000"),
        ({"type": "shell", "argv": "report --all"}, "job.target.argv", "write a list of words"),
        ({"type": "shell", "argv": [""]}, "job.target.argv.0", "'' is not an absolute path"),
        ({"type": "shell", "argv": ["sh"]}, "job.target.argv.0", "write the program's path"),
        ({"type": "shell", "argv": ["./sh"]}, "job.target.argv.0", "write the program's path"),
        ({"type": "shell", "argv": ["/bin/../tmp/sh"]}, "job.target.argv.0", "'..'"),
        ({"type": "shell", "argv": ["//bin/sh"]}, "job.target.argv.0", "'//'"),
        ({"type": "shell", "argv": ["/a"], "cwd": "/srv/../etc"}, "job.target.cwd", "'..'"),
        ({"type": "shell", "argv": ["/a", "b\0"]}, "job.target.argv.1", "is not valid"),
        ({"type": "shell", "argv": ["/a", "x" * 65_536]}, "job.target.argv", "standard input"),
        ({"type": "shell", "command": "report | mail"}, "job.target.command", '["/bin/sh", "-c"'),
        ({"type": "shell", "argv": ["/a"], "timeout": "1s"}, "job.target.timeout", "start_to_close"),
        ({"type": "shell", "argv": ["/a"], "cwd": "reports"}, "job.target.cwd", "/srv/reports"),
        ({"type": "shell", "argv": ["/a"], "env": {"TIDEWHEEL_RUN_ID": "1"}}, "job.target.env", "are reserved"),
        ({"type": "shell", "argv": ["/a"], "env": {"A": 1}}, "job.target.env.A", "1 is not valid"),
        ({"type": "shell", "argv": ["/a"], "memory_bytes": 1}, "job.target.memory_bytes", ""),
        ({"type": "lambda"}, "job.target.function", "is missing"),
        ({"type": "lambda", "function": "arn:aws:s3:::bucket"}, "job.target.function", "is not a Lambda function"),
        ({"type": "lambda", "function": "a", "region": "Ireland"}, "job.target.region", ""),
        ({"type": "kafka"}, "job.target.topic", "is missing"),
        ({"type": "kafka", "topic": ".."}, "job.target.topic", "not a topic name"),
        ({"type": "kafka", "topic": "a", "reply_timeout": "1m"}, "job.target.reply_timeout", "await_reply: true"),
        ({"type": "http", "url": "http://a", "async_timeout": "1m"}, "job.target.async_timeout", "async: true"),
        ({"type": "http", "url": "http://a", "async": True, "async_timeout": "31d"}, "job.target.async_timeout", "30d"),
        ({"type": "shel", "argv": ["/a"]}, "job.target.type", "'shell' or 'lambda'"),
        ({"type": "handler", "name": "tidewheel.shell"}, "job.target.name", "are reserved"),
    ],
)
def test_invalid_field_is_refused_by_its_path(target: dict[str, object], path: str, words: str) -> None:
    assert words in refused_job(target=target)[path]


@pytest.mark.parametrize(
    ("value", "path", "words"),
    [
        ({"secret": "billing"}, "Authorization.secret", "such as BILLING for TIDEWHEEL_SECRET_BILLING"),
        ({"secret": "../BILLING"}, "Authorization.secret", "write 1 to 64 of A-Z"),
        ({"secret": "B" * 65}, "Authorization.secret", "write 1 to 64 of A-Z"),
        ({"secret": "BILLING\n"}, "Authorization.secret", "write 1 to 64 of A-Z"),
        ({"secret": None}, "Authorization.secret", "write 1 to 64 of A-Z"),
        ({"secret": "BILLING", "prefix": "Bearer "}, "Authorization", 'only {"secret": "NAME"}'),
        ({"name": "BILLING"}, "Authorization", "fields other than secret"),
        ({}, "Authorization", "an empty object"),
    ],
)
def test_reference_to_a_secret_is_refused_without_showing_its_value(value: object, path: str, words: str) -> None:
    errors = refused_job(target={"type": "http", "url": "http://a", "headers": {"Authorization": value}})
    assert list(errors) == [f"job.target.headers.{path}"]
    told = errors[f"job.target.headers.{path}"]
    assert words in told
    assert "../" not in told
    assert "Bearer" not in told


def test_header_has_either_a_value_or_a_secret() -> None:
    headers = {"X-Key": "1", "x-key": {"secret": "BILLING"}}
    assert (
        "given twice"
        in refused_job(target={"type": "http", "url": "http://a", "headers": headers})["job.target.headers.x-key"]
    )


def test_secrets_are_for_http_targets_only() -> None:
    target = {"type": "kafka", "topic": "orders", "headers": {"a": {"secret": "BILLING"}}}
    assert "only targets of type http" in refused_job(target=target)["job.target.headers.a"]


def test_field_of_avro_requests_is_refused_in_json_with_its_place() -> None:
    errors = refused_job(target={"type": "http", "url": "http://a", "secret_headers": {"Authorization": "BILLING"}})
    assert '{"secret": "NAME"}' in errors["job.target.secret_headers"]


def test_reference_is_stored_as_it_was_submitted() -> None:
    target = {"type": "http", "url": "http://a", "headers": {"Authorization": {"secret": "BILLING"}}}
    stored = json.loads(canonical_spec(submitted(target=target)))
    assert stored["target"] == target
    assert canonical_spec(submitted(target=stored["target"])) == canonical_spec(submitted(target=target))
