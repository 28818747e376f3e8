"""`tidewheel run list | show | where | attempts | cancel | retry`."""

from typing import Annotated
from uuid import UUID

import typer

from tidewheel.control.cli.answers import Answer, Output, say
from tidewheel.control.cli.connecting import DEFAULT_TENANT, Tenant, asking
from tidewheel.control.cli.jobs import Reason

RunId = Annotated[UUID, typer.Argument(metavar="RUN", help="The run, by the id it was answered with.")]


def cancel(
    run_id: RunId, *, reason: Reason = None, tenant: Tenant = DEFAULT_TENANT, output: Answer = Output.TEXT
) -> None:
    """End a run, whatever state it is in."""
    with asking(tenant) as client:
        found = client.cancel(run_id, reason=reason)
    say([f"run {run_id}: was {found}"], {"run_id": run_id, "found": found}, output)
