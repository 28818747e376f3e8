"""A job's stored version as it can be submitted again, with its payload and without credentials."""

from base64 import b64encode

from tidewheel.control.reads.stored import read_stored_json
from tidewheel.jobs.headers import without_literal_credentials
from tidewheel.jobs.payload import JSON_CONTENT
from tidewheel.jobs.stored_spec import submitted_form
from tidewheel.jobs.strict_json import as_object
from tidewheel.redaction import redact_query
from tidewheel.schemas.generated.records import JobDefinition


def submitted_job(
    key: str, spec: object, definition: JobDefinition | None, *, as_stored: bool = False
) -> dict[str, object]:
    """Return the `job` of the request that created a stored version.

    Args:
        key: The job's key; intake assigned one if it was submitted without.
        definition: Its definition, which has the payload; None if that cannot be read.
        as_stored: True for a change of the job, which keeps the secrets in its URL: output hides them.
    """
    job: dict[str, object] = {"key": key, **submitted_form(spec)}
    target = as_object(job.get("target")) or {}
    if isinstance(url := target.get("url"), str) and not as_stored:
        job["target"] = target = {**target, "url": redact_query(url)}
    headers = as_object(target.get("headers")) if target.get("type") == "http" else None
    if headers is not None:
        job["target"] = {**target, "headers": without_literal_credentials(headers)}
    if definition is None:
        return job
    if definition.payload_content_type != JSON_CONTENT:
        job["payload_base64"] = b64encode(definition.payload).decode()
    elif definition.payload:
        job["payload"] = read_stored_json("payload", definition.payload, f"job {key}")
    return job
