"""From a job as it was submitted to what its runs carry to executors."""

from datetime import timedelta

from tidewheel.errors import UndecodableMessage
from tidewheel.jobs import targets
from tidewheel.jobs.payload import JSON_CONTENT, Payload
from tidewheel.jobs.retry import RetryPolicy
from tidewheel.jobs.schedule import FixedDelaySpec
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.targets import TARGETS
from tidewheel.jobs.values import microseconds
from tidewheel.schemas.generated import records
from tidewheel.schemas.generated.records import (
    Backoff,
    HttpTarget,
    JobDefinition,
    KafkaTarget,
    Lane,
    Overlap,
    Retry,
    Target,
    TargetKind,
)

NO_PAYLOAD = Payload(b"", JSON_CONTENT)

_REQUIRED = {TargetKind(kind): target.requires for kind, target in TARGETS.items() if target.requires}


def definition_record(
    spec: JobSpec, *, tenant: str, job_id: str, job_version: int, job_key: str | None = None
) -> JobDefinition:
    """Return what executors need of one job version, every default in place.

    The id has 36 characters in lower case. Intake gives a key to a job that was submitted without one.
    """
    key = spec.key if job_key is None else job_key
    if key is None:
        raise ValueError("a job without a key was accepted; give it the request_id or the message's coordinates first")
    payload = spec.carried or NO_PAYLOAD
    return JobDefinition(
        tenant=tenant,
        job_id=job_id,
        job_key=key,
        job_version=job_version,
        queue=spec.queue,
        lane=Lane(spec.lane),
        overlap=Overlap(spec.overlap_policy),
        target=_target(spec.target),
        payload=payload.content,
        payload_content_type=payload.content_type,
        retry=_retry(spec.retry),
        start_to_close_ms=_milliseconds(spec.start_to_close),
        fixed_delay=isinstance(spec.schedule, FixedDelaySpec) or None,
        pause_on_failure=spec.pause_on_failure,
        schedule_to_start_ms=_optional_milliseconds(spec.schedule_to_start),
        schedule_to_close_ms=_optional_milliseconds(spec.schedule_to_close),
        heartbeat_ms=_optional_milliseconds(spec.heartbeat),
        at_most_once=spec.delivery == "at_most_once" or None,
        on_failure=spec.on_failure,
        labels=spec.labels,
    )


def needs(target: Target) -> str:
    """Return the handler or capability that a target requires."""
    name = _REQUIRED.get(target.kind, target.handler)
    if name is None:
        raise UndecodableMessage("the definition's target has no handler")
    return name


def _target(target: targets.TargetSpec) -> Target:
    match target:
        case targets.HandlerTargetSpec():
            return Target(kind=TargetKind.HANDLER, handler=target.name)
        case targets.HttpTargetSpec():
            waits = _milliseconds(target.async_timeout) if target.is_async else None
            named = {name: value.secret for name, value in target.headers.items() if not isinstance(value, str)}
            http = HttpTarget(
                method=target.method,
                url=target.url,
                headers={name: value for name, value in target.headers.items() if isinstance(value, str)},
                async_timeout_ms=waits,
                secret_headers=named or None,
            )
            return Target(kind=TargetKind.HTTP, http=http)
        case targets.KafkaTargetSpec():
            waits = _milliseconds(target.reply_timeout) if target.await_reply else None
            kafka = KafkaTarget(topic=target.topic, key=target.key, headers=target.headers, reply_timeout_ms=waits)
            return Target(kind=TargetKind.KAFKA, kafka=kafka)
        case _:  # its record has the fields of the model
            record = getattr(records, f"{target.type.capitalize()}Target")
            fields = {name: value for name, value in target if name != "type"}
            field = "aws_lambda" if target.type == "lambda" else target.type
            return Target(kind=TargetKind(target.type), **{field: record(**fields)})


def _retry(policy: RetryPolicy) -> Retry:
    return Retry(
        max_attempts=policy.attempts,
        backoff=Backoff(policy.kind),
        initial_ms=_milliseconds(policy.initial),
        factor=float(policy.factor),
        max_ms=_milliseconds(policy.max),
        jitter=policy.jitter,
        intervals_ms=tuple(_milliseconds(interval) for interval in policy.intervals or ()),
        non_retryable=policy.non_retryable,
    )


def _milliseconds(span: timedelta) -> int:
    """Return whole milliseconds, rounded up, so that the shortest span is not none."""
    return -(-microseconds(span) // 1000)


def _optional_milliseconds(span: timedelta | None) -> int | None:
    return None if span is None else _milliseconds(span)
