"""Programs: their input, their outcomes, and the removal of every process they leave."""

import asyncio
import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.executor.attempting import RUN, attempt_of, run_attempt
from tests.fixtures.services import until
from tidewheel.errors import SettingsError
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import OUTPUT_BYTES, Outcome
from tidewheel.executor.programs.process import ProgramStarter
from tidewheel.executor.programs.supervisor import Command
from tidewheel.executor.runners.shell import ShellRunner
from tidewheel.redaction import protect
from tidewheel.runs import AttemptOutcome
from tidewheel.settings.executor import ExecutorSettings

pytestmark = pytest.mark.process

PATIENCE_SECONDS = 60
DAEMON = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        print(os.getpid(), flush=True)\n        time.sleep(600)\n    os._exit(0)\nos.wait()\n"  # noqa: E501


def shell(program: str, *arguments: str, **target: object) -> dict[str, Any]:
    path = program if "/" in program else shutil.which(program)
    return {"target": {"type": "shell", "argv": [path, *arguments], **target}}


def python(source: str, *arguments: str, **target: object) -> dict[str, Any]:
    return shell(sys.executable, "-I", "-S", "-c", source, *arguments, **target)


def load(**settings: object) -> ExecutorSettings:
    return ExecutorSettings.load(**{"shell_allow": "*", "shell_cwd": "/"} | settings)


def run(job: dict[str, Any], **settings: object) -> tuple[Outcome, str]:
    return end_of(attempt_of(job), **settings)


def end_of(attempt: Attempt, **settings: object) -> tuple[Outcome, str]:
    return run_attempt(lambda: ShellRunner(load(**settings)), attempt), written(attempt)


def cancel(job: dict[str, Any], *, times: int = 1, **settings: object) -> str:
    """Cancel a program once it has written something; returns what it had written at its end."""
    attempt = attempt_of(job)

    async def work() -> None:
        runner = ShellRunner(load(**settings))
        task = asyncio.ensure_future(runner.run(attempt))
        while not written(attempt):
            await asyncio.sleep(0.01)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.02)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, PATIENCE_SECONDS)
        await runner.close()

    asyncio.run(work())
    return written(attempt)


def written(attempt: Attempt) -> str:
    return ((attempt.output and attempt.output.tail()) or b"").decode()


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_payload_is_standard_input_and_exit_code_the_result() -> None:
    outcome, output = run(shell("cat") | {"payload": {"to": "ann"}})
    assert (outcome, output) == (Outcome(AttemptOutcome.SUCCEEDED, result=b'{"exit_code":0}'), '{"to":"ann"}')


def test_unread_payload_does_not_fail_the_program() -> None:
    outcome, _ = run(shell("true") | {"payload": "x" * (256 * 1024 - 2)})
    assert outcome.kind is AttemptOutcome.SUCCEEDED


def test_no_shell_reads_the_arguments() -> None:
    arguments = ["a b", "; touch here", "$HOME", "`id`", "*", "&&", "", "\n", "ä"]
    _, output = run(python("import json, sys; print(json.dumps(sys.argv[1:]))", *arguments))
    assert json.loads(output) == arguments


def test_program_gets_allowed_job_and_run_variables_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executors = ("TIDEWHEEL_DATABASE_URL", "TIDEWHEEL_SECRET_BILLING", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY")
    for name in (*executors, "OTHER"):
        monkeypatch.setenv(name, "password=hunter2")
    monkeypatch.setenv("LANG", "C.UTF-8")
    job = python("import json, os; print(json.dumps(dict(os.environ)))", env={"MODE": "fast", "HOME": "/jobs"})
    _, output = run(job, shell_env="HOME,LANG,MISSING")
    assert json.loads(output) == {
        "LANG": "C.UTF-8",
        "HOME": "/jobs",
        "MODE": "fast",
        "TIDEWHEEL_RUN_ID": str(RUN),
        "TIDEWHEEL_IDEMPOTENCY_KEY": str(RUN),
        "TIDEWHEEL_ATTEMPT": "1",
        "TIDEWHEEL_JOB_KEY": "job",
        "TIDEWHEEL_SCHEDULED_AT": "2026-03-29T12:00:00+00:00",
    }


def test_supervisor_of_a_program_has_no_secret_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may read its parent's environment."""
    monkeypatch.setenv("TIDEWHEEL_DATABASE_URL", "password=hunter2")
    monkeypatch.setenv("TIDEWHEEL_SECRET_BILLING", "api.example.org=hunter2")
    _, output = run(python("import os; print(open(f'/proc/{os.getppid()}/environ').read(), 'read')"))
    assert output.strip().endswith("read")
    assert "hunter2" not in output


def test_executors_secrets_cannot_be_allowed_for_programs() -> None:
    for name in ("TIDEWHEEL_DATABASE_URL", "TIDEWHEEL_SECRET_BILLING", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY"):
        with pytest.raises(SettingsError, match=f"{name} is reserved for the executor"):
            load(shell_env=f"PATH, {name}")


def test_program_works_in_a_new_folder_that_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, output = run(shell("sh", "-c", "pwd; ls -A; mkdir -p deep/er; touch deep/er/file"))
    [folder] = output.split()
    until(lambda: not Path(folder).exists(), "the folder is removed")
    _, output = run(shell("pwd", cwd=str(tmp_path)))
    assert output.strip() == str(tmp_path)
    assert tmp_path.exists()


@pytest.mark.parametrize(
    ("job", "error_type", "said"),
    [
        (shell("sh", "-c", "echo one >&2; echo two >&2; exit 3"), "exit_3", "one\ntwo"),
        (shell("sh", "-c", "echo out; exit 75"), "exit_75", "exit code 75"),
        (shell("sh", "-c", "kill -SEGV $$"), "signal_SIGSEGV", "killed by SIGSEGV"),
    ],
)
def test_other_exit_codes_and_signals_are_named_failures(job: dict[str, Any], error_type: str, said: str) -> None:
    outcome, _ = run(job)
    assert (outcome.kind, outcome.error_type, outcome.error_message) == (AttemptOutcome.FAILED, error_type, said)
    assert not outcome.permanent
    assert not outcome.not_started


def test_error_message_is_the_tail_of_standard_error() -> None:
    outcome, output = run(shell("sh", "-c", "seq 100000 >&2; exit 1"))
    assert (outcome.error_message or "").endswith("99999\n100000")
    assert len((outcome.error_message or "").splitlines()) == 20
    assert len(output) == OUTPUT_BYTES


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (shell("/no/such/program"), "/no/such/program: No such file or directory"),
        (shell("/etc/passwd"), "/etc/passwd: Permission denied"),
        (shell("/"), "/: Permission denied"),
        (shell("true", cwd="/no/such/folder"), "/no/such/folder: No such file or directory"),
    ],
)
def test_program_that_cannot_be_started_is_a_permanent_non_start(job: dict[str, Any], said: str) -> None:
    outcome, _ = run(job)
    assert (outcome.error_type, outcome.permanent, outcome.not_started) == ("ProgramNotStarted", True, True)
    assert said in (outcome.error_message or "")


ECHO = str(shutil.which("echo"))
SH = str(shutil.which("sh"))


def refused(job: dict[str, Any], **settings: object) -> bool:
    """Return True if a program is refused before it starts, for good; the message names the setting."""
    outcome, output = run(job, **settings)
    if outcome.error_type != "ProgramRefused":
        return False
    assert (outcome.permanent, outcome.not_started, output) == (True, True, "")
    assert "TIDEWHEEL_SHELL_" in (outcome.error_message or "")
    return True


@pytest.mark.parametrize(
    ("allowed", "argv", "passes"),
    [
        (ECHO, [ECHO], True),
        (ECHO, [ECHO, "a"], False),  # a bare program has no arguments
        (ECHO, [SH], False),
        (f"{ECHO} ...", [ECHO], True),
        (f"{ECHO} ...", [ECHO, "a", "b"], True),
        (f"{ECHO} --name=* [0-9]*", [ECHO, "--name=a b", "7"], True),
        (f"{ECHO} --name=* [0-9]*", [ECHO, "--name=a b", "x"], False),
        (f"{ECHO} --name=* [0-9]*", [ECHO, "7", "--name=a b"], False),  # the whole line, in its order
        (f"{ECHO} --name=* [0-9]*", [ECHO, "--name=a", "7", "--exec=sh"], False),
        (f"{ECHO} --name=* [0-9]*", [ECHO, "--name=a"], False),
        (f"{ECHO} a ...", [ECHO, "b", "a"], False),
        (f"{SH} -c 'exit 0'\n{ECHO} a", [SH, "-c", "exit 0"], True),
        (f"{SH} -c 'exit 0'\n{ECHO} a", [SH, "-c", "exit 0; id"], False),
        ("*", [ECHO, "a"], True),
    ],
)
def test_whole_command_line_must_be_allowed(allowed: str, argv: list[str], passes: bool) -> None:  # noqa: FBT001 - a case
    assert refused(shell(*argv), shell_allow=allowed) is not passes


def test_executor_without_a_list_runs_no_program() -> None:
    assert refused(shell("true"), shell_allow="")


def test_program_of_the_jobs_own_folder_does_not_run(tmp_path: Path) -> None:
    """A relative name was run from `cwd`: a file of the job's own."""
    mine = tmp_path / "backup"
    mine.write_text("#!/bin/sh\necho mine\n")
    mine.chmod(0o755)
    settings = {"shell_allow": f"{ECHO} ...", "shell_cwd": str(tmp_path)}
    for name in ("backup", "./backup", "bin/../backup"):
        # As a message that did not pass intake has it.
        attempt = attempt_of(shell("true", cwd=str(tmp_path)))
        shell_target = attempt.definition.target.shell
        assert shell_target is not None
        forged = replace(shell_target, argv=(name,))
        target = replace(attempt.definition.target, shell=forged)
        attempt.definition = replace(attempt.definition, target=target)
        for allowed in (settings, settings | {"shell_allow": "*"}):
            outcome, output = end_of(attempt, **allowed)
            assert (outcome.error_type, outcome.not_started, output) == ("ProgramRefused", True, "")


def test_job_works_in_allowed_folders_only(tmp_path: Path) -> None:
    """By default in none but its own new one; no link and no `..` leads out of them."""
    inside, outside = tmp_path / "jobs", tmp_path / "jobs-of-others"
    for folder in (inside / "a", outside):
        folder.mkdir(parents=True)
    (inside / "out").symlink_to(outside)
    (inside / "in").symlink_to(inside / "a")
    assert refused(shell("pwd", cwd=str(inside)), shell_cwd="")
    for cwd in (outside, tmp_path, inside / "out", "/"):
        assert refused(shell("pwd", cwd=str(cwd)), shell_cwd=str(inside))
    for cwd, real in ((inside, inside), (inside / "a", inside / "a"), (inside / "in", inside / "a")):
        assert run(shell("pwd", "-P", cwd=str(cwd)), shell_cwd=str(inside))[1].strip() == str(real.resolve())


async def test_link_that_is_put_in_after_the_check_starts_nothing(tmp_path: Path) -> None:
    """The supervisor compares where it has arrived with the checked folder."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    starter = ProgramStarter()
    command = Command(argv=[ECHO, "a"], env={}, cwd=str(tmp_path / "link"), limits={}, not_after=math.inf)
    written: list[bytes] = []
    program = await starter.start(command, b"", (written.append, written.append))
    ended = await program.ended
    program.close()
    await starter.close()
    assert (ended.errno, "replaced by a link" in ended.message) == (errno.ELOOP, True)


def test_restricted_programs_take_only_variables_that_the_operator_allows() -> None:
    """`BASH_ENV` or `PYTHONPATH` would make an allowed script run what the job likes."""
    for variable in ("PATH", "LD_PRELOAD", "BASH_ENV", "PYTHONPATH"):
        outcome, _ = run(shell(ECHO, env={"MODE": "full", variable: "x"}), shell_allow=ECHO, shell_job_env="MODE")
        assert (outcome.error_type, outcome.not_started) == ("ProgramRefused", True)
        assert variable in (outcome.error_message or "")
    outcome, _ = run(shell(ECHO, env={"MODE": "full"}), shell_allow=ECHO, shell_job_env="MODE")
    assert outcome.kind is AttemptOutcome.SUCCEEDED


@pytest.mark.landing
def test_endless_output_does_not_grow_memory() -> None:
    """256 MiB through both pipes; what is kept is the end of it."""
    size = 128 << 20
    before = psutil.Process().memory_info().rss
    attempt = attempt_of(shell("sh", "-c", f"head -c {size} /dev/zero >&2; yes x | head -c {size}"))
    outcome, _ = end_of(attempt)
    assert outcome.kind is AttemptOutcome.SUCCEEDED
    assert attempt.output is not None
    assert (attempt.output.written, written(attempt)) == (2 * size, "x\n" * (OUTPUT_BYTES // 2))
    assert psutil.Process().memory_info().rss - before < 64 << 20


def test_leftover_children_are_killed_and_delay_no_end() -> None:
    """They hold its output open, for ten minutes."""
    outcome, output = run(shell("sh", "-c", "sleep 600 & echo $!; sleep 600 & echo $!"))
    assert outcome.kind is AttemptOutcome.SUCCEEDED
    assert len(output.split()) == 2
    assert all(gone(int(pid)) for pid in output.split())


def test_daemon_in_its_own_session_is_killed() -> None:
    outcome, output = run(python(DAEMON))
    assert outcome.kind is AttemptOutcome.SUCCEEDED
    assert gone(int(output))


def test_cancelled_program_may_clean_up() -> None:
    source = "trap 'echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    assert cancel(shell("sh", "-c", source)).endswith("cleaned\n")


@pytest.mark.parametrize("times", [1, 3])
def test_program_that_ignores_sigterm_is_killed_with_its_children(times: int) -> None:
    source = "trap '' TERM; sleep 600 & echo $$ $!; while :; do sleep 0.01; done"
    pids = cancel(shell("sh", "-c", source), times=times, cancel_grace=timedelta(seconds=0.2))
    assert len(pids.split()) == 2
    assert all(gone(int(pid)) for pid in pids.split())


def test_suspended_program_is_killed() -> None:
    pid = cancel(shell("sh", "-c", "echo $$; kill -STOP $$"))
    assert gone(int(pid))


def test_grace_is_never_longer_than_the_drain() -> None:
    pid = cancel(
        shell("sh", "-c", "trap '' TERM; echo $$; while :; do sleep 0.01; done"),
        cancel_grace=timedelta(hours=1), drain_timeout=timedelta(seconds=0.1),
    )  # fmt: skip
    assert gone(int(pid))


def test_job_memory_is_bounded_by_the_executors_limit() -> None:
    source = "import resource; print(resource.getrlimit(resource.RLIMIT_AS)[0] >> 20)"
    most = 512 << 20
    assert run(python(source, memory_bytes=256 << 20), shell_memory_bytes=most)[1] == "256\n"
    assert run(python(source, memory_bytes=1 << 40), shell_memory_bytes=most)[1] == "512\n"
    assert run(python(source), shell_memory_bytes=most)[1] == "512\n"


@pytest.mark.landing
@pytest.mark.parametrize(
    ("job", "settings", "error_type", "said"),
    [
        (python("b = bytearray(1 << 30)", memory_bytes=256 << 20), {}, "exit_1", "MemoryError"),
        (shell("sh", "-c", "while :; do :; done", cpu_seconds=1), {"shell_cpu_seconds": 3600}, "signal_SIGXCPU", ""),
        (shell("sh", "-c", "exec head -c 100000 /dev/zero > big"), {"shell_file_bytes": 4096}, "signal_SIGXFSZ", ""),
    ],
    ids=["memory", "time", "file"],
)
def test_program_over_a_limit_fails_alone_and_is_named(
    job: dict[str, Any], settings: dict[str, object], error_type: str, said: str
) -> None:
    outcome, _ = run(job, **settings)
    assert outcome.error_type == error_type
    assert (outcome.error_message or "").endswith(said)


FORKS = """
import os, resource, sys, time
if os.getuid() == 0:
    os.setuid(65534)  # no limit of processes binds root
made = 0
try:
    while made < 800:
        if os.fork() == 0:
            time.sleep(600)
        made += 1
except BlockingIOError:
    print("bounded", flush=True)
"""


def processes_of(uid: int) -> list[dict[str, Any]]:
    found = [process.info for process in psutil.process_iter(["uids", "num_threads"])]
    return [each for each in found if each["uids"] is not None and each["uids"].real == uid]


def test_forks_are_bounded_and_all_killed() -> None:
    uid = os.getuid() or 65534
    mine = sum(each["num_threads"] or 0 for each in processes_of(uid))
    # Tests of another worker start and end threads of the same user meanwhile, a broker's hundred among them.
    outcome, output = run(python(FORKS), shell_processes=mine + 200)
    assert (outcome.kind, output) == (AttemptOutcome.SUCCEEDED, "bounded\n")
    if mine == 0:
        assert not processes_of(uid)


async def test_killed_program_starter_is_replaced() -> None:
    runner = ShellRunner(load())
    first = await runner.run(attempt_of(shell("true")))
    for child in psutil.Process().children():
        if "programs/supervisor.py" in " ".join(child.cmdline()):
            child.kill()
            child.wait(PATIENCE_SECONDS)
    second = await runner.run(attempt_of(shell("true")))
    await runner.close()
    assert [first.kind, second.kind] == [AttemptOutcome.SUCCEEDED] * 2


def test_program_that_kills_its_supervisor_dies_with_it() -> None:
    outcome, output = run(shell("sh", "-c", "echo $$; kill -KILL $PPID; sleep 600"))
    assert (outcome.error_type, outcome.permanent, outcome.not_started) == ("SupervisorGone", False, False)
    until(lambda: gone(int(output)), "the program is dead")


@contextmanager
def another_executor(source: str) -> Generator[tuple["subprocess.Popen[str]", list[int]]]:
    """A process of its own that runs a program; with the process ids that the program tells."""
    script = (
        "import asyncio, sys\nfrom tests.executor.attempting import attempt_of\n"
        "from tests.executor.test_shell_runner import load, python, written\n"
        "from tidewheel.executor.runners.shell import ShellRunner\n"
        "async def work():\n    attempt = attempt_of(python(sys.argv[1]))\n"
        "    task = asyncio.ensure_future(ShellRunner(load()).run(attempt))\n"
        "    while len(written(attempt).split()) < 2:\n        await asyncio.sleep(0.01)\n"
        "    print(written(attempt).replace('\\n', ' '), flush=True)\n    await task\nasyncio.run(work())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, source], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as process:
        try:
            assert process.stdout is not None
            yield process, [int(pid) for pid in process.stdout.readline().split()]
        finally:
            process.kill()


@pytest.mark.landing
def test_program_and_its_daemon_are_killed_with_the_executor() -> None:
    source = f"{DAEMON}\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    with another_executor(source) as (process, pids):
        assert len(pids) == 2
        assert not any(gone(pid) for pid in pids)
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
        until(lambda: all(gone(pid) for pid in pids), "both are dead")


def test_secret_at_the_cut_of_standard_error_is_redacted() -> None:
    secret = "canary-of-a-program"
    protect(secret)
    outcome, _ = run(python(f"import sys; sys.exit({secret!r} + 'y' * 2040)"))
    assert outcome.error_message is not None
    assert len(outcome.error_message) == 2048
    assert "program" not in outcome.error_message
