"""Run allowed programs of shell targets: disabled by default, bounded, killed as a whole at the end.

No shell reads the arguments. A program gets the allowed variables of the executor's environment, its job's and the
run's, and no others. Its payload is its standard input. Its output is read as it arrives, and the last 64 KiB are kept.
"""

import asyncio
import errno
import os
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress

from tidewheel.executor.attempt import SHUTDOWN_GRACE_SECONDS, Attempt
from tidewheel.executor.outcome import NOT_STARTED, RELEASED, Outcome, failed, succeeded
from tidewheel.executor.programs.process import Program, ProgramEnd, ProgramStarter, SupervisorGone
from tidewheel.executor.programs.supervisor import LEASE_OVER, Command
from tidewheel.jobs.allow_lists import is_within
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.redaction import redact
from tidewheel.schemas.generated.records import ShellTarget
from tidewheel.settings.executor import ExecutorSettings

_TAIL_CHARACTERS = 2048  # of standard error in the message; this much is never cut
_KEPT_BYTES = 16 * _TAIL_CHARACTERS  # a secret that was cut in half is not among the characters that are shown
_TAIL_LINES = 20
_DRAIN_SECONDS = 1.0  # for reading its pipes: its processes are dead, only an unrelated one could keep them open
_KILLED_SECONDS = 5.0  # after SIGKILL; longer only if the kernel hangs, as on a lost network disk
_BEFORE_FENCE = 0.9  # of the grace: it is dead before its run is recorded as cancelled and the job's next may start

# The next attempt meets these again. Other errors, such as no memory or no process left, may be gone by then.
_PERMANENT = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.E2BIG, errno.EINVAL, errno.EISDIR,
     errno.ELOOP, errno.ENAMETOOLONG)
)  # fmt: skip


class ShellRunner:
    """Runs the programs of shell targets."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self._settings = settings
        self._allow_lists = settings.allow_lists(enforces=True)
        self._passed = {name: os.environ[name] for name in names(settings.shell_env) if name in os.environ}
        self._grace = min(settings.cancel_grace.total_seconds() * _BEFORE_FENCE, settings.drain_timeout.total_seconds())
        self._starter = ProgramStarter()

    async def run(self, attempt: Attempt) -> Outcome:
        """Run the program and return its outcome: exit code 0 succeeds."""
        target = attempt.definition.target.shell
        if target is None or not target.argv:
            return failed("InvalidTarget", "the job's version has no program", permanent=True, not_started=True)
        try:
            self._allow_lists.check_program(target.argv, target.cwd, target.env)
            cwd = target.cwd and await asyncio.to_thread(_real_folder, target.cwd, self._allow_lists.folders)
        except InvalidValue as refusal:
            return failed("ProgramRefused", str(refusal), permanent=True, not_started=True)
        errors = bytearray()

        def write_error(data: bytes) -> None:
            attempt.write(data)
            errors.extend(data[-_KEPT_BYTES:])
            del errors[:-_KEPT_BYTES]

        command = Command(
            argv=target.argv,
            env=self._environment(attempt, target),
            cwd=cwd,
            limits=self._limits(target),
            not_after=attempt.lease.until,  # looked at right before the program begins
        )
        starting = asyncio.ensure_future(self._starter.start(command, attempt.payload, (attempt.write, write_error)))
        try:
            started = await asyncio.shield(starting)
            ending = await asyncio.shield(started.ended)
        except asyncio.CancelledError:
            releasing = attempt.stop_outcome is RELEASED
            await _finish(self._end(starting, SHUTDOWN_GRACE_SECONDS / 2 if releasing else self._grace))
            raise
        except (SupervisorGone, OSError) as error:
            return failed("ProgramNotStarted", str(error), not_started=True)
        await started.drained(_DRAIN_SECONDS)
        started.close()
        return _outcome_of(ending, bytes(errors))

    async def close(self) -> None:
        """Kill running programs."""
        await self._starter.close()

    async def _end(self, starting: "asyncio.Future[Program]", grace: float) -> None:
        """End a program: SIGTERM, then SIGKILL after the grace."""
        try:
            program = await starting
        except (SupervisorGone, OSError):
            return
        program.terminate()
        await asyncio.wait([program.ended], timeout=grace)
        program.kill()
        await asyncio.wait([program.ended], timeout=_KILLED_SECONDS)
        await program.drained(_DRAIN_SECONDS)
        program.close()

    def _environment(self, attempt: Attempt, target: ShellTarget) -> dict[str, str]:
        request = attempt.request
        ours = {
            "TIDEWHEEL_RUN_ID": request.run_id,
            "TIDEWHEEL_ATTEMPT": str(attempt.started.attempt),
            "TIDEWHEEL_JOB_KEY": attempt.definition.job_key,
            "TIDEWHEEL_SCHEDULED_AT": request.scheduled_at.isoformat(),
            "TIDEWHEEL_IDEMPOTENCY_KEY": request.run_id,
        }
        if request.checkpoint is not None:
            ours["TIDEWHEEL_CHECKPOINT"] = request.checkpoint.decode()
        if attempt.traceparent:
            ours["TRACEPARENT"] = attempt.traceparent
        return {**self._passed, **target.env, **ours}

    def _limits(self, target: ShellTarget) -> Mapping[str, int]:
        settings = self._settings
        bounds = {
            "RLIMIT_CORE": 0,
            "RLIMIT_NPROC": settings.shell_processes,
            "RLIMIT_FSIZE": settings.shell_file_bytes,
            "RLIMIT_AS": _lower(settings.shell_memory_bytes, target.memory_bytes),
            "RLIMIT_CPU": _lower(settings.shell_cpu_seconds, target.cpu_seconds),
        }
        return {name: bound for name, bound in bounds.items() if bound is not None}


def _real_folder(cwd: str, folders: Sequence[str]) -> str:
    real = os.path.realpath(cwd)
    if any(is_within(real, os.path.realpath(folder)) for folder in folders):
        return real
    problem = f"{cwd!r} points outside the folders in which jobs may run"
    raise InvalidValue(problem=problem, remedy="use a folder that TIDEWHEEL_SHELL_CWD allows")


def names(listed: str) -> list[str]:
    """Return the items of a list separated by commas."""
    return [word for part in listed.split(",") if (word := part.strip())]


def _lower(ours: int | None, jobs: int | None) -> int | None:
    bounds = [bound for bound in (ours, jobs) if bound is not None]
    return min(bounds, default=None)


async def _finish(work: Coroutine[object, object, None]) -> None:
    """Wait for the end of work that must not be interrupted, however often this task is cancelled."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    task.result()


def _outcome_of(ending: ProgramEnd, errors: bytes) -> Outcome:
    if ending.exit_code == 0:
        return succeeded(b'{"exit_code":0}')
    if ending.exit_code is not None:
        return failed(f"exit_{ending.exit_code}", _last_lines(errors) or f"exit code {ending.exit_code}")
    if ending.signal_name is not None:
        return failed(f"signal_{ending.signal_name}", _last_lines(errors) or f"killed by {ending.signal_name}")
    if ending.errno == LEASE_OVER:
        return NOT_STARTED
    if ending.errno is None:
        return failed("SupervisorGone", f"the program's end is unknown: {ending.message}")
    return failed("ProgramNotStarted", ending.message, permanent=ending.errno in _PERMANENT, not_started=True)


def _last_lines(errors: bytes) -> str:
    lines = redact(errors.decode("utf-8", "replace").strip()).splitlines()
    return "\n".join(lines[-_TAIL_LINES:])[-_TAIL_CHARACTERS:]
