"""Read a job's versions with their changes, compare any two, and export one to be submitted again.

The comparison is of the jobs as submitted, before defaults. So a release that changes defaults makes no difference
between versions. Payloads are compared by their hash. An export has the payload, and no credentials.
"""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256

from psycopg.rows import class_row

from tidewheel.control.reads.stored import read_definition, read_stored_json
from tidewheel.errors import UnknownJob, refuse
from tidewheel.ids import job_id
from tidewheel.intake.new_jobs import tenant_zone
from tidewheel.jobs.http_values import without_literal_credentials
from tidewheel.jobs.payload import JSON_CONTENT
from tidewheel.jobs.spec_cache import submitted_form
from tidewheel.jobs.strict_json import as_object
from tidewheel.nouns.jobs.model import Change, Version
from tidewheel.nouns.operation import Page
from tidewheel.postgres.session import Conn, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.redaction import redact_query
from tidewheel.schemas.generated.records import JobDefinition

_SQL = Statements("tidewheel.control")
MAX_VERSIONS = 100  # of one page: each is read with its payload, at most 256 KiB
_LATEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _VersionRow:
    version: int
    effective_at: datetime
    retired_at: datetime | None
    superseded_at: datetime | None
    spec: object
    definition: bytes


def versions(connection: Conn, tenant: str, key: str, *, limit: int = 20, before: int | None = None) -> Page[Version]:
    """Return up to 100 versions of a job, also a deleted one, before a number if given, newest first."""
    limit = min(max(limit, 1), MAX_VERSIONS)
    columns = {"job_id": job_id(tenant, key), "before": before or _LATEST, "limit": limit + 1}
    with connection.cursor(row_factory=class_row(_VersionRow), binary=True) as cursor:
        # Decoded row by row: a hundred of the largest payloads have 25 MiB.
        read = [(_version(key, row), _document(key, row)) for row in cursor.execute(_SQL["read_versions"], columns)]
    if not read and before is None:
        raise UnknownJob(tenant, key)
    found = [
        replace(version, changes=tuple(changes(earlier[1], document))) if earlier else version
        for (version, document), earlier in zip(read[:limit], [*read[1:], None], strict=False)
    ]
    return Page(found, found[-1].number if len(read) > limit else None)


def diff(connection: Conn, tenant: str, key: str, a: int, b: int) -> list[Change]:
    """Compare version `b` of a job with version `a`, field by field."""
    before, after = _read_rows(connection, tenant, key, [a, b])
    return changes(_document(key, before), _document(key, after))


def job_at(connection: Conn, tenant: str, key: str, number: int) -> dict[str, object]:
    """Return a job as it was submitted for one version, with its payload."""
    [row] = _read_rows(connection, tenant, key, [number])
    return submitted_job(key, row.spec, _definition(key, row))


def _read_rows(connection: Conn, tenant: str, key: str, numbers: Sequence[int]) -> list[_VersionRow]:
    columns = {"job_id": job_id(tenant, key), "versions": list(numbers)}
    rows = {
        row.version: row for row in read_rows(connection, class_row(_VersionRow), _SQL["read_two_versions"], columns)
    }
    missing = [number for number in numbers if number not in rows]
    if missing:
        newest = versions(connection, tenant, key, limit=1)[0].number
        refuse("version", f"job {key!r} has no version {missing[0]}", f"write 1 to {newest}")
    return [rows[number] for number in numbers]


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> list[Change]:
    """Return the differences between two jobs as submitted, in the order of their paths.

    >>> for each in changes({"target": "a", "schedule": {"cron": "0 8 * * *"}}, {"schedule": {"cron": "0 9 * * *"}}):
    ...     print(each.path, each.before, each.after)
    schedule.cron 0 8 * * * 0 9 * * *
    target a None
    """
    was, now = dict(_leaves(before)), dict(_leaves(after))
    return [Change(path, was.get(path), now.get(path)) for path in sorted(was | now) if was.get(path) != now.get(path)]


def submitted_job(
    key: str, spec: object, definition: JobDefinition | None, *, as_stored: bool = False
) -> dict[str, object]:
    """Return the `job` of the request that created a stored version.

    Args:
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


def keep_zone(connection: Conn, tenant: str, job: dict[str, object]) -> dict[str, object]:
    """Return a stored job with UTC written out where another submit would get its tenant's zone."""
    schedule = as_object(job.get("schedule")) or {}
    if "cron" not in schedule or "timezone" in schedule or tenant_zone(connection, tenant) is None:
        return job
    return {**job, "schedule": {**schedule, "timezone": "UTC"}}


def _leaves(document: Mapping[str, object], path: str = "") -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        here = f"{path}.{name}" if path else name
        parts = as_object(value)
        if parts and here != "payload":
            yield from _leaves(parts, here)
        else:
            yield here, value


def _definition(key: str, row: _VersionRow) -> JobDefinition | None:
    return read_definition(row.definition, f"version {row.version} of job {key}")


def _version(key: str, row: _VersionRow) -> Version:
    definition = _definition(key, row)
    payload = b"" if definition is None else definition.payload
    return Version(
        number=row.version,
        effective_at=row.effective_at,
        until=row.retired_at or row.superseded_at,
        retired_at=row.retired_at,
        payload_sha256=sha256(payload).hexdigest(),
        payload_bytes=len(payload),
        changes=(),
    )


def _document(key: str, row: _VersionRow) -> dict[str, object]:
    """Return a version in the form of a submit, with the hash of its payload in place of the payload."""
    definition = _definition(key, row)
    document = submitted_job(key, row.spec, None)
    if definition is not None and definition.payload:
        digest = sha256(definition.payload).hexdigest()
        document["payload"] = f"sha256 {digest} ({len(definition.payload)} bytes)"
    return document
