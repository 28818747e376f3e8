"""From a job as it was submitted to what its runs carry to executors."""

from datetime import timedelta

from tidewheel.jobs.durations import microseconds
from tidewheel.jobs.payload import JSON_CONTENT, Payload
from tidewheel.jobs.retry import RetryPolicy
from tidewheel.jobs.schedule import FixedDelay
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.targets import HandlerTarget
from tidewheel.jobs.targets import HttpTarget as HttpTargetSpec
from tidewheel.schemas.records import Backoff, HttpTarget, JobDefinition, Lane, Overlap, Retry, Target, TargetKind

NO_PAYLOAD = Payload(b"", JSON_CONTENT)


def definition_record(
    spec: JobSpec, *, tenant: str, job_id: str, job_version: int, job_key: str | None = None
) -> JobDefinition:
    """Return what executors need of one job version, every default in place.

    Args:
        spec: The job as submitted.
        tenant: Tenant it belongs to.
        job_id: UUID of the job, 36 characters in lower case.
        job_version: Version the spec became.
        job_key: Key intake gave a job that was submitted without one.

    Raises:
        ValueError: The job has no key.
    """
    key = spec.key if job_key is None else job_key
    if key is None:
        msg = "a job without a key was accepted; give it the request_id or the message's coordinates first"
        raise ValueError(msg)
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
        fixed_delay=isinstance(spec.schedule, FixedDelay) or None,
        pause_on_failure=spec.pause_on_failure,
        labels=spec.labels,
    )


def _target(target: HandlerTarget | HttpTargetSpec) -> Target:
    if isinstance(target, HandlerTarget):
        return Target(kind=TargetKind.HANDLER, handler=target.name)
    http = HttpTarget(method=target.method, url=target.url, headers=target.headers)
    return Target(kind=TargetKind.HTTP, http=http)


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
