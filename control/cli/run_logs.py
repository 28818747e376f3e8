"""`tidewheel run logs`: what the attempts of a run have written, and what one is writing."""

import sys
from codecs import getincrementaldecoder
from typing import Annotated, cast

import typer

from tidewheel.control.cli.connection_options import DEFAULT_TENANT, Tenant, asking
from tidewheel.control.cli.output import Answer, Output, as_json, say_json
from tidewheel.control.cli.runs import RunId
from tidewheel.control.client.logs import LogPiece

_UTF8 = getincrementaldecoder("utf-8")


def logs(
    run_id: RunId,
    *,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only this attempt.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run is over.")] = False,
    tenant: Tenant = DEFAULT_TENANT,
    output: Answer = Output.TEXT,
) -> None:
    """Print what a run's attempts have written: the last 64 KiB of each.

    Which attempt it is of, and what is missing, is said on standard error. With --follow and --output json each piece
    is a document on a line of its own.
    """
    with asking(tenant) as client:
        pieces = client.follow_logs(run_id, attempt) if follow else iter(client.logs(run_id, attempt))
        if output is Output.JSON and not follow:
            say_json({"run_id": run_id, "attempts": list(pieces)})
            return
        texts = _Texts()
        for piece in pieces:
            text = texts.of(piece)
            if output is Output.JSON:
                say_json({**cast("dict[str, object]", as_json(piece)), "output": text})
            else:
                _print(piece, text, new=texts.new)
            sys.stdout.flush()
        if not texts.attempt and output is Output.TEXT:
            typer.echo(f"nothing is kept of what run {run_id} has written", err=True)


class _Texts:
    """Pieces as text: a character may begin in one and end in the next."""

    def __init__(self) -> None:
        self.attempt, self.new = 0, False
        self._decoder = _UTF8("replace")

    def of(self, piece: LogPiece) -> str:
        self.new = piece.attempt != self.attempt
        if self.new or piece.missed_bytes:
            self._decoder.reset()
        self.attempt = piece.attempt
        return self._decoder.decode(piece.output)


def _print(piece: LogPiece, text: str, *, new: bool) -> None:
    if new:
        ended = f", {piece.outcome}" if piece.outcome else ""
        typer.echo(f"-- attempt {piece.attempt}{ended}", err=True)
    if piece.missed_bytes:
        typer.echo(f"-- {piece.missed_bytes} bytes before this are no longer kept", err=True)
    typer.echo(text, nl=False)
