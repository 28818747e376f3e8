"""Run the stack's programs in a clean environment, as the user they need."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple


class Account(NamedTuple):
    """The system user a program runs as."""

    uid: int
    gid: int


def run_program(
    command: Sequence[str],
    *,
    cwd: Path,
    account: Account | None = None,
    stdin: IO[bytes] | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `command` to its end; `stdout` has its output and its errors.

    `variables` are added to the environment.
    """
    return subprocess.run(  # noqa: S603 - programs of our own wheels, arguments written by the stack
        command,
        cwd=cwd,
        env={**clean_environment(), **(variables or {})},
        stdin=stdin or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        user=account and account.uid,
        group=account and account.gid,
        extra_groups=None if account is None else [],  # without root's groups
    )


def start_program(
    command: Sequence[str], *, cwd: Path, output: IO[bytes], account: Account | None = None
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, so that it outlives us and our terminal."""
    return subprocess.Popen(  # noqa: S603 - as above
        command,
        cwd=cwd,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        user=account and account.uid,
        group=account and account.gid,
        extra_groups=None if account is None else [],
    )


def clean_environment() -> dict[str, str]:
    """Return the programs' environment, without the caller's PG*, CLASSPATH and JAVA_*."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
