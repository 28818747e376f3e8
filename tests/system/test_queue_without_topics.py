"""A queue without topics: the sweep serves it, and every place names one remedy."""

import pytest
from pydantic import SecretStr

from tests.fixtures.services import Fleet, admin_of
from tidewheel.control.doctor.doctor import diagnose
from tidewheel.control.reads.status import read_status
from tidewheel.runs import Lane
from tidewheel.settings.connections import Connections
from tidewheel.settings.kafka_client import client_variables

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

_SECONDS = 200.0  # a minute is what is compared
REMEDY = "tidewheel admin topics apply --queues default"


def remedies(fleet: Fleet) -> list[str]:
    with fleet.database.transaction() as connection:
        problems = read_status(connection, fleet.database.installation.shards).problems
    return [problem.remedy for problem in problems if problem.check == "fallbacks"]


def test_queue_without_topics_is_found_with_one_remedy(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runs started a second late, by the sweep alone, and nothing said so."""
    services = fleet.start_all("scheduler", "relay", "executor")
    fleet.wait_started()
    fleet.database.submit("often", schedule="@every 1s", target="note")
    ended = "SELECT count(*) FROM finished_runs WHERE claimed_from <> 'sweep'"
    fleet.until(lambda: fleet.database.value(ended), "a message brings a run")
    admin = admin_of(fleet.kafka)
    for gone in admin.delete_topics([fleet.topics.runs("default", lane) for lane in Lane]).values():
        gone.result(60)
    fleet.until(lambda: remedies(fleet), "status finds it", seconds=_SECONDS)
    [remedy] = remedies(fleet)
    assert f"`{REMEDY}`" in remedy
    for service in (services["relay"], services["executor"]):
        fleet.until(lambda service=service: service.has_logged(f"`{REMEDY}`"), f"the {service.role} logs it")
    for name, value in client_variables(fleet.kafka).items():
        monkeypatch.setenv(name, value)
    settings = Connections.load(database_url=SecretStr(fleet.database.url), topic_prefix=fleet.topics.prefix)
    findings = [each for each in diagnose(settings).findings if each.check in {"topics", "fallbacks"}]
    about = [each for each in findings if ".runs." in each.what or each.check == "fallbacks"]
    assert {each.check for each in about} == {"topics", "fallbacks"}
    assert all(REMEDY in each.remedy for each in about), about
