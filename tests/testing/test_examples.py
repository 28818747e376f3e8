"""The examples for users: the shop leaves nothing behind, the web application commits rows and runs."""

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fixtures.database import Database
from tests.fixtures.services import admin_of, until
from tests.strict_types import ROOT
from tidewheel.local.stack import StackInfo
from tidewheel.postgres.session import connect
from tidewheel.scheduler.cancels import PendingCancels
from tidewheel.testing.plugin import DATABASE_VARIABLE, KAFKA_VARIABLE

_PATIENCE_SECONDS = 300
# The other worker's tests use the same servers: what these tests have made is known by name.
NOTING = '''"""Notes what the kit makes."""

import json
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

MADE = set()


@pytest.fixture(autouse=True)
def noted(tidewheel, tidewheel_stack):
    MADE.update({conninfo_to_dict(tidewheel.url)["dbname"], tidewheel_stack.template.name})
    made = {"prefix": tidewheel_stack.topics.prefix, "databases": sorted(MADE)}
    Path("made.json").write_text(json.dumps(made))
'''


@pytest.mark.kafka
@pytest.mark.slow
def test_tests_of_the_example_pass_and_leave_nothing_behind(info: StackInfo, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "shop", tmp_path / "shop")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PG"))}
    environment |= {DATABASE_VARIABLE: info.database_url, KAFKA_VARIABLE: info.bootstrap}
    environment["TIDEWHEEL_KAFKA_PROPERTIES"] = str(info.kafka_properties)
    (tmp_path / "shop" / "conftest.py").write_text(NOTING)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-W",
            "error",
            "-p",
            "tidewheel.testing.plugin",
            "-p",
            "no:cacheprovider",
        ],
        cwd=tmp_path / "shop",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout
    made = json.loads((tmp_path / "shop" / "made.json").read_text())
    assert len(made["databases"]) >= 2
    with connect(info.database_url, "test") as connection:
        there = {str(name) for (name,) in connection.execute("SELECT datname FROM pg_database").fetchall()}
    assert there.isdisjoint(made["databases"])
    admin = admin_of(info.kafka)

    def left() -> list[str]:
        return [name for name in admin.list_topics(timeout=30).topics if name.startswith(made["prefix"])]

    until(lambda: not left(), "the broker has forgotten the topics")  # which it has deleted


@pytest.fixture
def web(fresh_database: Database, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The application on a database of its own, with the job of its receipts."""
    fresh_database.execute("CREATE TABLE orders (number text PRIMARY KEY, email text NOT NULL)")
    fresh_database.submit("receipt")
    at = conninfo_to_dict(fresh_database.url)
    address = f"{at['user']}:{at['password']}@{at['host']}:{at['port']}/{at['dbname']}"
    monkeypatch.setenv("SHOP_DATABASE_URL", f"postgresql+psycopg://{address}")
    spec = importlib.util.spec_from_file_location("web_example", ROOT / "examples" / "web" / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_order_and_its_receipt_commit_together(web: ModuleType, fresh_database: Database) -> None:
    async def work() -> None:
        transport = httpx.ASGITransport(app=web.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            await customer(client)
        await web.engine.dispose()

    async def customer(client: httpx.AsyncClient) -> None:
        placed = await client.post("/orders", json={"number": "A-1", "email": "ann@example.org"})
        assert placed.status_code == 201
        run = placed.json()["receipt"]
        assert (await client.get(f"/receipts/{run}")).json() == {"state": "queued"}
        assert fresh_database.count("orders") == fresh_database.count("job_runs") == 1
        assert (await client.post("/orders", json={"number": "A-2", "email": ""})).status_code == 422
        assert fresh_database.count("orders") == fresh_database.count("job_runs") == 1
        withdrawn = await client.delete("/orders/A-1", params={"run_id": run})
        assert withdrawn.json() == {"was": "queued"}
        PendingCancels(fresh_database.session(), fresh_database.installation).step()
        assert (await client.get(f"/receipts/{run}")).json() == {"state": "cancelled"}
        assert (await client.get("/receipts/01a205c8-740c-8e3c-8cc6-4617cdce9b2b")).status_code == 404

    asyncio.run(work())
