"""Build a release with notes, provenance and checksums, and try it: `python -m tools.release`.

Exit codes: 0 if all of it works, 1 if a part fails, 130 if interrupted.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from tidewheel.errors import StackError
from tools.containers.__main__ import guarded
from tools.containers.engine import run
from tools.containers.progress import step, wait_for

_ROOT = Path(__file__).resolve().parents[1]
_DIST = _ROOT / "dist"
_LOCKS = ("requirements/build.lock", "requirements/image.lock")
_MOST_NOTES = 80  # lines: operators read all of it before an upgrade
_READY_SECONDS = 300.0  # the first start downloads Kafka
_RUN_SECONDS = 60.0
_HANDLER = """import tidewheel


@tidewheel.handler("greet")
async def greet(ctx: tidewheel.Context, payload: str) -> str:
    return f"hello {payload}"
"""
_JOB = """import tidewheel

with tidewheel.Client() as client:
    client.submit({"key": "greet", "schedule": "manual", "target": "greet"})
    run = client.runs.wait(client.trigger("greet", "world"))
    print(run.state, run.result)
"""


def main() -> int:
    """Build the release and try it; return the exit code."""
    version = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
    _check_tree()
    notes = _read_notes(version)
    with step("build wheel, source archive and list of parts, about 1 minute"):
        run(["make", "sbom"], folder=_ROOT)
    (_DIST / "NOTES.md").write_text(notes)
    _write_provenance(version)
    _write_checksums()
    _try_release(version)
    print(*sorted(f"{path.stat().st_size:>10,}  dist/{path.name}" for path in _DIST.iterdir()), sep="\n")
    print(f"passed: {version} installs into empty environments, and runs a job")
    return 0


def _check_tree() -> None:
    """Refuse changed and new files: the source archive has all that git does not ignore."""
    if changed := run(["git", "-C", _ROOT, "status", "--porcelain"]):
        message = f"the tree differs from its commit; commit, stash or remove first:\n{changed.rstrip()}"
        raise StackError(message)


def _read_notes(version: str) -> str:
    """Return the changelog's part of this version, with its steps of the upgrade and its way back."""
    number = re.escape(re.split(r"rc|\.dev", version)[0])
    part = re.search(rf"^## \[{number}\].*?(?=^## |\Z)", (_ROOT / "CHANGELOG.md").read_text(), re.MULTILINE | re.DOTALL)
    lines = part[0].strip().splitlines() if part else []
    if not lines or len(lines) > _MOST_NOTES:
        message = f"CHANGELOG.md has {len(lines)} lines of {version}: write 1 to {_MOST_NOTES}"
        raise StackError(message)
    if "rc" in version:
        lines[:0] = [f"{version} is a candidate to try: no later version upgrades its database.", ""]
    return "\n".join(lines) + "\n"


def _write_provenance(version: str) -> None:
    """Write a statement of in-toto with SLSA's predicate: the commit and the locks of the built files."""
    commit = run(["git", "-C", _ROOT, "rev-parse", "HEAD"]).strip()
    locks = [{"name": lock, "digest": _digest(_ROOT / lock)} for lock in _LOCKS]
    built = [path for path in sorted(_DIST.iterdir()) if path.name.startswith("tidewheel")]
    statement: dict[str, Any] = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": _digest(path)} for path in built],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:tidewheel:make-release",
                "externalParameters": {"version": version},
                "resolvedDependencies": [{"name": "tidewheel", "digest": {"gitCommit": commit}}, *locks],
            },
            "runDetails": {"builder": {"id": f"urn:tidewheel:cpython-{sys.version.split()[0]}"}},
        },
    }
    (_DIST / "provenance.intoto.json").write_text(json.dumps(statement, indent=2) + "\n")


def _digest(path: Path) -> dict[str, str]:
    return {"sha256": sha256(path.read_bytes()).hexdigest()}


def _write_checksums() -> None:
    lines = [f"{_digest(path)['sha256']}  {path.name}\n" for path in sorted(_DIST.iterdir())]
    (_DIST / "SHA256SUMS").write_text("".join(lines))


def _try_release(version: str) -> None:
    """Install wheel and source archive into empty environments, and run a job by `tidewheel dev`."""
    [wheel], [source] = _DIST.glob("*.whl"), _DIST.glob("*.tar.gz")
    with TemporaryDirectory() as text:
        folder = Path(text)
        own = {"TIDEWHEEL_HOME": str(folder / "home"), "PYTHONPATH": ""}
        with step(f"install {wheel.name}[local] into an empty environment"):
            _install(f"{wheel}[local]", folder / "env")
        with step("run a job by `tidewheel dev`"):
            (folder / "greetings.py").write_text(_HANDLER)
            with _dev(folder, own):
                found = run([folder / "env/bin/python", "-c", _JOB], folder=folder, variables=own)
        if found != "succeeded b'\"hello world\"'\n":
            message = f"the job ended otherwise: {found}"
            raise StackError(message)
        with step(f"install {source.name} into an empty environment"):
            _install(str(source), folder / "source")
            if version not in run([folder / "source/bin/tidewheel", "--version"], folder=folder, variables=own):
                message = f"{source.name} is of another version"
                raise StackError(message)


def _install(what: str, environment: Path) -> None:
    run([sys.executable, "-m", "venv", environment])
    run([environment / "bin/pip", "--disable-pip-version-check", "install", "--quiet", what], folder=environment)


@contextmanager
def _dev(folder: Path, variables: Mapping[str, str]) -> Generator[None]:
    """Run `tidewheel dev` until it is left."""
    log = folder / "dev.log"
    program = folder / "env/bin/tidewheel"
    command = [str(program), "dev", "--handlers", "greetings", "--api-port=0", "--metrics-port=0"]
    with log.open("wb") as output:
        dev = subprocess.Popen(command, cwd=folder, env={**os.environ, **variables}, stdout=output, stderr=output)

    def is_ready() -> bool:
        if dev.poll() is not None:
            message = f"`tidewheel dev` ended with {dev.returncode}: {log.read_text()[-2000:]}"
            raise StackError(message)
        return '"message": "ready"' in log.read_text()

    try:
        wait_for(is_ready, "`tidewheel dev` is ready", _READY_SECONDS)
        yield
    finally:
        _end(dev)


def _end(dev: "subprocess.Popen[bytes]") -> None:
    if dev.poll() is not None:
        return
    top = psutil.Process(dev.pid)
    started = top.children(recursive=True)
    dev.send_signal(signal.SIGINT)
    try:
        dev.wait(_RUN_SECONDS)
    except subprocess.TimeoutExpired as error:
        for process in (top, *started):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        message = f"`tidewheel dev` did not end within {_RUN_SECONDS:.0f} s of Ctrl-C, and was killed"
        raise StackError(message) from error


if __name__ == "__main__":
    sys.exit(guarded(main))
