"""Write notes, provenance and checksums of a release, and try it: `python -m tools.release`.

`make release` has written the wheel, the source archive and the list of parts to `dist/`. Exit code 1 if a part fails.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tidewheel.errors import StackError
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
    """Finish the release and try it; return the exit code."""
    version = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
    try:
        _check_tree()
        _write_notes(version)
        _write_provenance(version)
        _write_checksums()
        _try_release(version)
    except StackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(*sorted(f"{path.stat().st_size:>10,}  dist/{path.name}" for path in _DIST.iterdir()), sep="\n")
    print(f"passed: {version} installs into an empty environment, and runs a job")
    return 0


def _check_tree() -> None:
    if changed := run(["git", "-C", _ROOT, "status", "--porcelain", "--untracked-files=no"]):
        message = f"the tree differs from its commit, commit or stash first:\n{changed.rstrip()}"
        raise StackError(message)


def _write_notes(version: str) -> None:
    """Write the changelog's part of this version, with its steps of the upgrade and its way back."""
    number = re.escape(re.split(r"rc|\.dev", version)[0])
    part = re.search(rf"^## \[{number}\].*?(?=^## |\Z)", (_ROOT / "CHANGELOG.md").read_text(), re.MULTILINE | re.DOTALL)
    lines = part[0].strip().splitlines() if part else []
    if not lines or len(lines) > _MOST_NOTES:
        message = f"CHANGELOG.md has {len(lines)} lines of {version}: write 1 to {_MOST_NOTES}"
        raise StackError(message)
    (_DIST / "NOTES.md").write_text("\n".join(lines) + "\n")


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
    """Install the wheel into an empty environment, run a job by `tidewheel dev`; then the source archive."""
    [source] = _DIST.glob("*.tar.gz")
    with TemporaryDirectory() as text:
        folder = Path(text)
        pip: list[str | Path] = [folder / "env/bin/pip", "--disable-pip-version-check", "install", "--quiet"]
        own = {"TIDEWHEEL_HOME": str(folder / "home"), "PYTHONPATH": ""}
        with step(f"install tidewheel[local]=={version} into an empty environment"):
            run([sys.executable, "-m", "venv", folder / "env"])
            run([*pip, f"--find-links={_DIST}", f"tidewheel[local]=={version}"], folder=folder)
        with step("run a job by `tidewheel dev`"):
            (folder / "greetings.py").write_text(_HANDLER)
            with _dev(folder, own):
                found = run([folder / "env/bin/python", "-c", _JOB], folder=folder, variables=own)
        if found != "succeeded b'\"hello world\"'\n":
            message = f"the job ended otherwise: {found}"
            raise StackError(message)
        with step("install the source archive in its place"):
            run([*pip, "--no-deps", "--force-reinstall", source], folder=folder)
            if version not in run([folder / "env/bin/tidewheel", "--version"], folder=folder, variables=own):
                message = f"{source.name} is of another version"
                raise StackError(message)


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
        dev.send_signal(signal.SIGINT)
        dev.wait(_RUN_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
