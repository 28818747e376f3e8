"""Change single fields of a job by a JSON merge patch (RFC 7396).

The patch is merged with the stored version, and the result is submitted with `if_version` of that version, in one
transaction. So a concurrent change is never overwritten. A `request_id` belongs to the patch, not to the submit that
was made from it: a repeated patch gets the first reply, whatever has changed the job meanwhile.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress

from tidewheel.control.client.connection import Connection, drop_none, raise_rejection
from tidewheel.control.reads.jobs import show_job
from tidewheel.errors import VersionConflict, refuse
from tidewheel.intake.apply import apply_requests, first_reply
from tidewheel.intake.request import ReceivedRequest, content_hash
from tidewheel.jobs.parsing import own_request
from tidewheel.jobs.strict_json import as_object
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn
from tidewheel.schemas.generated.records import Reply

_TRIES = 20  # of a patch of any version: each lost race is a change of another client


def patch_job(
    connection: Connection,
    key: str,
    patch: Mapping[str, object],
    *,
    if_version: int | None = None,
    request_id: str | None = None,
) -> Reply:
    """Apply a merge patch to a job."""
    tenant = connection.tenant
    made_from = content_hash(["job.patch", tenant, key, if_version, patch])

    def work(writing: Conn) -> Reply:
        if request_id is not None and (first := first_reply(writing, tenant, request_id, made_from)) is not None:
            return first
        current = show_job(writing, tenant, key, as_stored=True)
        job = as_object(merged(current.job, patch)) or {}
        if job.get("key") != key:
            refuse("job.key", "a job keeps its key", "leave it out")
        version = current.summary.version if if_version is None else if_version
        submit = {"type": "job.submit", "tenant": tenant, "job": job, "if_version": version, "request_id": request_id}
        received = ReceivedRequest(own_request(drop_none(submit)), made_from=made_from)
        [reply] = apply_requests(writing, connection.installation, [received], actor=connection.actor)
        if if_version is None and reply.code == VersionConflict.code:
            raise_rejection(reply, version)  # rolls back: no reply is stored for the request_id
        return reply

    reply = _written(connection, work)
    connection.notify(Channel.TIMERS, Channel.OUTBOX)
    raise_rejection(reply, if_version)
    return reply


def _written(connection: Connection, work: Callable[[Conn], Reply]) -> Reply:
    for _ in range(_TRIES - 1):
        with suppress(VersionConflict):
            return connection.write(work)
    return connection.write(work)


def merged(target: object, patch: object) -> object:
    """Return a JSON value with a merge patch applied. Source: RFC 7396, section 2.

    >>> merged({"a": 1, "b": {"c": 2, "d": 3}}, {"a": None, "b": {"c": 4}})
    {'b': {'c': 4, 'd': 3}}
    """
    if (changes := as_object(patch)) is None:
        return patch
    result = dict(as_object(target) or {})
    for name, value in changes.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result
