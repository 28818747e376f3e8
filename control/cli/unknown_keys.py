"""The refusal of a key that no job has: it names the option that was given, and the nearest keys."""

from contextlib import suppress
from difflib import get_close_matches

from psycopg import DatabaseError

from tidewheel.control.cli.options import reading, tenant_flag
from tidewheel.errors import FieldError, Refused, TidewheelError, UnknownJob
from tidewheel.nouns.jobs.reads import list_jobs

_COMPARED = 1000  # keys, of those with the same first character and of all


def with_nearest(unknown: UnknownJob, option: str | None) -> Refused:
    """Return a refusal with a remedy that names the option of the key, or no option for an argument."""
    [error] = unknown.errors
    remedy = error.remedy
    if not unknown.was_deleted:
        near = _nearest(unknown.tenant, unknown.key)
        listed = f"`tidewheel job list{tenant_flag(unknown.tenant)}` lists the keys"
        remedy = f"did you mean {' or '.join(map(repr, near))}?" if near else listed
    refused = Refused([FieldError(option or error.path, error.problem, remedy)])
    refused.code = unknown.code
    return refused


def _nearest(tenant: str, key: str) -> list[str]:
    keys: set[str] = set()
    with suppress(TidewheelError, DatabaseError), reading() as connection:
        for prefix in (key[:1], ""):
            keys |= {job.key for job in list_jobs(connection, tenant, prefix=prefix, limit=_COMPARED).jobs}
    return get_close_matches(key, sorted(keys), n=3)
