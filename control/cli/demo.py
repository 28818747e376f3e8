"""`tidewheel demo`: the whole pipeline on real input, in about a minute.

Exit codes: 0 when every figure adds up, 1 when one does not or the demo could not be run, 130 when it was interrupted.
"""

from typing import Annotated

import typer

from tidewheel.control.demo.run import run_demo

_INTERRUPTED = 130  # as shells say it: 128 and SIGINT


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack up, with the demo's data in it.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Run hundreds of real jobs end to end, kill an executor half-way, and check every figure.

    Brings a PostgreSQL and a Kafka of its own, or uses the stack that runs already, in a database and topics apart.
    """
    try:
        adds_up = run_demo(keep=keep)
    except KeyboardInterrupt:
        typer.echo("interrupted: everything the demo had started is stopped and removed", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    if not adds_up:
        raise typer.Exit(1)
