"""The web application among the examples: a request's rows and its run are one transaction."""

import asyncio
import importlib.util
from types import ModuleType

import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fixtures.database import Database
from tests.strict_types import ROOT
from tidewheel.scheduler.cancels import PendingCancels


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
