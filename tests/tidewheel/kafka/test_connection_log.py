"""A client without its broker logs the loss, a line a minute and the return."""

import logging
import socket

import pytest

from tests.fixtures.services import until
from tidewheel.kafka.clients import ConnectionLog, consumer, producer

FAILED = "[thrd:127.0.0.1:9]: 127.0.0.1:9/1: Connect to ipv4#127.0.0.1:9 failed: Connection refused"


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_failed_connections_are_logged_at_the_loss_and_at_the_return(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidewheel.kafka.clients")
    log = ConnectionLog("relay", quiet_seconds=0.3)
    for _ in range(700):
        log.log(logging.WARNING, "%s [%s] %s", "FAIL", "tidewheel-relay#producer-1", FAILED)
    [first] = lines(caplog)
    assert first == (
        "WARNING",
        f"relay: a connection to Kafka failed; the client tries again until it succeeds: {FAILED}",
    )
    until(lambda: len(caplog.records) > 1, "the return is logged")
    assert "700 failed" in caplog.records[1].getMessage()
    assert caplog.records[1].levelname == "INFO"
    log.log(logging.WARNING, "%s [%s] %s", "FAIL", "tidewheel-relay#producer-1", FAILED)
    assert len(caplog.records) == 3


def test_other_lines_of_a_client_are_logged_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    log = ConnectionLog("relay")
    for _ in range(2):
        log.log(logging.WARNING, "%s [%s] %s", "MAXPOLL", "tidewheel-relay#consumer-1", "not polled")
    assert lines(caplog) == [("WARNING", "MAXPOLL [tidewheel-relay#consumer-1] not polled")] * 2


@pytest.mark.landing
def test_clients_without_a_broker_log_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    """Each logged four lines a second."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        config = {"bootstrap.servers": f"127.0.0.1:{closed.getsockname()[1]}"}
        sending = producer(config, role="relay")
        reading = consumer(config, group="g", role="intake", protocol="classic")
        reading.subscribe(["any"])
        for _ in range(30):
            reading.poll(0.1)
            sending.poll(0)
        reading.close()
    named = [message.partition(":")[0] for _, message in lines(caplog)]
    assert sorted(named) == ["intake", "relay"]
