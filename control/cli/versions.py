"""`tidewheel job rollback`: a job's versions."""

from typing import Annotated

import typer

from tidewheel.control.cli.answers import Answer, Output
from tidewheel.control.cli.connecting import DEFAULT_TENANT, Key, Tenant, asking
from tidewheel.control.cli.jobs import IfVersion, say_job


def rollback(
    key: Key,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="The version whose spec is wanted.")],
    *,
    if_version: IfVersion = None,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """Give a job the spec of an earlier version again, as a new version."""
    with asking(tenant) as client:
        done = client.rollback(key, version, if_version=if_version)
    say_job(key, f"rolled back to what version {version} said", done, output)
