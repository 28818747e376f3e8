"""A client in TypeScript, generated from the OpenAPI document and used against the API.

npm installs 37 packages, those of `typescript/package-lock.json`, with the node of a wheel.
"""

import json
import shutil
from pathlib import Path

import httpx
import pytest

from tests.fixtures.services import Fleet
from tests.fixtures.typescript import npm, run_node
from tidewheel.api_keys import Scope

SOURCES = Path(__file__).parent / "typescript"


@pytest.mark.slow
@pytest.mark.kafka
def test_generated_client_in_typescript_is_type_safe_and_works(fleet: Fleet, tmp_path: Path) -> None:
    services = fleet.start_all("relay", "executor")
    api = services["api"] = fleet.start("api", API_TOKEN="of-executors-alone", API_PORT="0")
    fleet.wait_started()
    url = fleet.api_url(api)
    key = fleet.database.client.api_keys.create("typescript", [Scope.READ, Scope.WRITE]).key
    answer = httpx.get(f"{url}/api/v1/openapi.json", headers={"Authorization": f"Bearer {key}"}, trust_env=False)

    project = Path(shutil.copytree(SOURCES, tmp_path / "project"))
    npm(project, "ci", "--ignore-scripts")
    (project / "openapi.json").write_text(json.dumps(answer.json()))
    run_node(project, "node_modules/openapi-typescript/bin/cli.js", "openapi.json", "--output", "api.ts")
    run_node(project, "node_modules/typescript/bin/tsc")
    assert run_node(project, "built/client.js", API_URL=url, API_KEY=key) == "done\n"
