"""Each service reports if it lives and if it could work now, and the reason if not."""

import re
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.executor.test_consume import let_in
from tests.faults.workload import Workload
from tests.fixtures.oracle import Oracle
from tests.fixtures.services import LONG_LEASE, Fleet, Service
from tidewheel.local.stack import StackInfo

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


def get(service: Service, path: str) -> tuple[int, str]:
    """Return a service's response; it was started with METRICS_PORT=0."""
    [port] = {m[1] for line in service.log_lines() if (m := re.search(r"on port (\d+)", str(line.get("message"))))}
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def lacks(service: Service, reason: str) -> bool:
    status, text = get(service, "/readyz")
    return status == 503 and reason in text


@pytest.mark.slow
def test_service_without_a_database_is_live_and_not_ready(fleet: Fleet, info: StackInfo) -> None:
    services = fleet.start_all(METRICS_PORT="0")
    fleet.wait_started()
    for service in services.values():
        fleet.until(lambda: get(service, "/readyz") == (200, "ok\n"), f"{service.role} is ready")  # noqa: B023
    fleet.database.close()
    let_in(fleet.database, info, allowed=False)
    try:
        for service in services.values():
            fleet.until(lambda: lacks(service, "database: does not answer"), f"{service.role} is not ready")  # noqa: B023
            assert get(service, "/healthz") == (200, "ok\n")
    finally:
        let_in(fleet.database, info, allowed=True)
    for service in services.values():
        fleet.until(lambda: get(service, "/readyz") == (200, "ok\n"), f"{service.role} is ready again")  # noqa: B023


def test_draining_executor_is_not_ready(fleet: Fleet, oracle: Oracle) -> None:
    work = Workload(fleet, oracle)
    held = work.hold()
    fleet.start_all("intake", "relay")
    executor = fleet.start("executor", METRICS_PORT="0", DRAIN_TIMEOUT="PT30S", LEASE=LONG_LEASE)
    held.wait_begun(1)
    assert get(executor, "/readyz") == (200, "ok\n")
    executor.ask_to_stop()
    fleet.until(lambda: lacks(executor, "service: stop requested"), "it says that it is on its way out")
    assert get(executor, "/healthz") == (200, "ok\n")
    held.let_go()
    executor.wait_stopped()
