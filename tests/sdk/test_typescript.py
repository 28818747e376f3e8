"""The TypeScript package: its types, its archive, and its own tests on a real Tidewheel."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.fixtures.services import LONG_LEASE, Fleet
from tests.fixtures.typescript import EXAMPLE, SDK, install_package, npm, run_node
from tests.strict_types import ROOT
from tidewheel.api_keys import Scope
from tidewheel.control.client.client import Client
from tidewheel.settings.sources import client_variables

pytestmark = pytest.mark.slow  # npm installs

PAGE = ROOT / "docs" / "handlers-typescript.md"
SHOP = """
export const order = { type: "object", properties: { id: { type: "string" } }, required: ["id"] } as const;
interface Order { id: string }
export declare function chargeCard(order: Order): Promise<{ id: string }>;
export declare function printLabel(order: Order, charge: string): Promise<{ url: string }>;
export declare function sendMail(order: Order, url: string): Promise<void>;
export declare function pages(after: number): Promise<string[]>;
export declare function index(page: string, signal: AbortSignal): Promise<void>;
"""
BLOCK = re.compile(r"^```ts\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with what it depends on, built."""
    folder = install_package(tmp_path_factory.mktemp("typescript"))
    npm(folder, "run", "build")
    return folder


@pytest.mark.process
def test_generated_types_are_those_of_the_api(package: Path, tmp_path: Path) -> None:
    generated = tmp_path / "api.ts"
    run_node(package, "scripts/generate.ts", str(ROOT / "tests" / "golden" / "openapi.json"), str(generated))
    assert generated.read_text() == (ROOT / SDK / "src" / "api.ts").read_text(), "run `npm run generate`"


@pytest.mark.process
def test_package_example_and_page_are_strictly_typed(package: Path) -> None:
    users = package / "users"
    shutil.copytree(ROOT / EXAMPLE, users, ignore=shutil.ignore_patterns("node_modules"))
    (users / "package.json").unlink()  # so that `tidewheel` is the package around it
    (users / "shop.ts").write_text(SHOP)
    for number, text in enumerate(BLOCK.findall(PAGE.read_text())):
        (users / f"page{number}.ts").write_text(text)
    config = {"extends": "./tsconfig.json", "include": ["src", "scripts", "test", "users"]}
    (package / "tsconfig.all.json").write_text(json.dumps(config))
    run_node(package, "node_modules/typescript/bin/tsc", "--project", "tsconfig.all.json")


@pytest.mark.process
def test_archive_installs_elsewhere_without_zod(package: Path, tmp_path: Path) -> None:
    npm(package, "pack", "--pack-destination", str(tmp_path))
    [archive] = tmp_path.glob("*.tgz")
    (tmp_path / "package.json").write_text('{"private": true, "type": "module"}')
    npm(tmp_path, "install", "--ignore-scripts", str(archive))
    assert not (tmp_path / "node_modules" / "zod").exists()
    program = "import { defineHandler } from 'tidewheel'; console.log(defineHandler('a', () => 1).name)"
    assert run_node(tmp_path, "--input-type=module", "--eval", program) == "a\n"


@pytest.mark.kafka
def test_handlers_and_client_on_a_real_tidewheel(fleet: Fleet, package: Path) -> None:
    fleet.start("relay")
    api = fleet.start("api", API_TOKEN="of-executors-alone", API_PORT="0", LEASE=LONG_LEASE)
    fleet.wait_started()
    url = fleet.api_url(api)
    with Client(fleet.database.url) as client:
        key = client.api_keys.create("typescript", [Scope.READ, Scope.WRITE]).key
    variables = {
        "TIDEWHEEL_API_URL": url,
        "TIDEWHEEL_API_TOKEN": "of-executors-alone",
        "TIDEWHEEL_API_KEY": key,
        "TIDEWHEEL_KAFKA_BOOTSTRAP": fleet.kafka["bootstrap.servers"],
        "TIDEWHEEL_SLOTS": "8",
        "TIDEWHEEL_DRAIN_TIMEOUT": "0.2",
    }
    run_node(package, "--test", "test/*.test.ts", **client_variables(fleet.kafka), **variables)
