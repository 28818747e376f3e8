"""A client in TypeScript, generated from the OpenAPI document and used against the API.

This test needs node and npm. npm fetches 37 packages once, those of `typescript/package-lock.json`, into the cache.
"""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from tests.fixtures.services import Fleet
from tidewheel.api_keys import Scope
from tidewheel.control.client.client import Client
from tidewheel.local.jars import default_cache
from tidewheel.local.state import locked

SOURCES = Path(__file__).parent / "typescript"
SECONDS = 120.0


@pytest.fixture(scope="session")
def modules() -> Path:
    """The folder of the generator, the compiler and the client's library, in the locked versions."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("needs node 20 or newer, and npm")
    digest = hashlib.sha256((SOURCES / "package-lock.json").read_bytes()).hexdigest()
    folder = default_cache() / f"typescript-{digest[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            staging = folder.with_suffix(f".{os.getpid()}")
            staging.mkdir()
            for name in ("package.json", "package-lock.json"):
                shutil.copy(SOURCES / name, staging)
            run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], staging)
            staging.rename(folder)
    return folder / "node_modules"


@pytest.mark.slow
@pytest.mark.kafka
def test_generated_client_in_typescript_is_type_safe_and_works(fleet: Fleet, modules: Path, tmp_path: Path) -> None:
    services = fleet.start_all("relay", "executor")
    api = services["api"] = fleet.start("api", API_TOKEN="of-executors-alone", API_PORT="0")
    fleet.wait_started()
    fleet.until(lambda: api.has_logged("listening"), "the API listens")
    [port] = [line["message"].split()[-1] for line in api.log_lines() if "listening" in line["message"]]
    url = f"http://127.0.0.1:{port}"
    with Client(fleet.database.url) as client:
        key = client.api_keys.create("typescript", [Scope.READ, Scope.WRITE]).key
    answer = httpx.get(f"{url}/api/v1/openapi.json", headers={"Authorization": f"Bearer {key}"}, trust_env=False)

    project = tmp_path / "project"
    project.mkdir()
    (project / "openapi.json").write_text(json.dumps(answer.json()))
    (project / "node_modules").symlink_to(modules)
    for name in ("package.json", "tsconfig.json", "client.ts"):
        shutil.copy(SOURCES / name, project)
    programs = modules / ".bin"
    run([str(programs / "openapi-typescript"), "openapi.json", "--output", "api.ts"], project)
    run([str(programs / "tsc")], project)
    assert run(["node", "built/client.js"], project, API_URL=url, API_KEY=key) == "done\n"


def run(command: Sequence[str], folder: Path, **variables: str) -> str:
    """Run a command; return its output."""
    environment = os.environ | variables
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout
