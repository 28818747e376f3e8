"""Liveness comes from loops, readiness from checks; both are served with a reason per line."""

import socket
import threading
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.fixtures.services import until
from tidewheel.errors import SettingsError
from tidewheel.process import health as module
from tidewheel.process.health import Health, serve_health

MOST = 32  # connections


@pytest.fixture
def state() -> Health:
    return Health()


@pytest.fixture
def port(state: Health) -> int:
    served = serve_health(0, state)
    assert served is not None
    return served


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_no_port_means_no_server(state: Health) -> None:
    assert serve_health(None, state) is None


def test_server_has_health_and_metrics_only(port: int) -> None:
    status, text = get(port, "/metrics")
    assert status == 200
    assert "tidewheel_claims_total" in text
    assert get(port, "/elsewhere") == (404, "there are /metrics, /healthz and /readyz\n")


def test_service_without_checks_is_live_and_ready(port: int) -> None:
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/readyz") == (200, "ok\n")


def test_request_under_an_unknown_name_is_refused(state: Health) -> None:
    """A name that a web page controls may resolve to this machine: its scripts must not read the metrics."""
    port = serve_health(0, state, host="0.0.0.0", names=["Metrics.internal"])  # noqa: S104 - as in a container
    assert port is not None
    for host, status in (
        ("rebound.example", 421),
        ("localhost.rebound.example", 421),
        ("127.0.0.1.rebound.example", 421),
        ("metrics.internal:9464", 200),
        ("LOCALHOST", 200),
        (f"127.0.0.1:{port}", 200),
        ("[::1]:9464", 200),
    ):
        for path in ("/metrics", "/healthz", "/readyz"):
            assert answer(port, path, host)[0] == status, (host, path)
    assert "TIDEWHEEL_METRICS_HOSTS" in answer(port, "/metrics", "rebound.example")[1]


def test_metrics_are_served_on_the_configured_address_only(state: Health) -> None:
    port = serve_health(0, state, host="127.0.0.2")
    assert port is not None
    with pytest.raises(OSError, match="refused"):
        get(port, "/metrics")
    with urlopen(f"http://127.0.0.2:{port}/healthz", timeout=10) as served:
        assert served.status == 200
    assert serve_health(0, state, host="::1")
    with pytest.raises(SettingsError, match="TIDEWHEEL_METRICS_HOST"):
        serve_health(port, state, host="127.0.0.2")


def answers(port: int) -> bool:
    with suppress(OSError):  # refused while the threads of those closed end
        return get(port, "/healthz") == (200, "ok\n")
    return False


def silent(port: int) -> socket.socket:
    """A client that has connected, and sends nothing."""
    return socket.create_connection(("127.0.0.1", port), timeout=30)


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: loc"])
def test_client_that_sends_no_request_loses_its_connection(
    port: int, sent: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert module._Silent.timeout == 10.0  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(module._Silent, "timeout", 0.2)  # pyright: ignore[reportPrivateUsage]
    with silent(port) as client:
        client.sendall(sent)
        assert client.recv(1000) == b""
    assert get(port, "/healthz") == (200, "ok\n")
    assert capfd.readouterr().err == "", "no traceback for a client's silence"


def test_silent_clients_take_few_threads_and_keep_no_probe_away(port: int) -> None:
    before = threading.active_count()
    with ExitStack() as clients:
        opened = [clients.enter_context(silent(port)) for _ in range(100)]
        assert opened[0].recv(1) == b"", "the oldest is closed"
        until(lambda: answers(port), "a probe has its answer")
        assert threading.active_count() - before <= 2 * MOST


def test_requests_held_up_by_a_check_take_few_threads(state: Health, port: int) -> None:
    """A check that waits for a database, and probes that do not wait for it."""
    before, answered, asked = threading.active_count(), threading.Event(), threading.Event()

    def check() -> None:
        asked.set()
        answered.wait(30)

    state.requires("database", check)
    with ExitStack() as clients:
        for _ in range(100):
            with suppress(OSError):  # closed already
                clients.enter_context(silent(port)).sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        assert asked.wait(30)
        assert threading.active_count() - before <= 2 * MOST
        answered.set()
    until(lambda: answers(port), "the threads end")


def answer(port: int, path: str, host: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={"Host": host})
    with connection.getresponse() as response:
        read = response.read().decode()
    connection.close()
    return response.status, read


def test_stuck_loop_is_reported_by_name(state: Health, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STUCK_SECONDS", 0.0)
    state.report("sweep")
    status, text = get(port, "/healthz")
    assert status == 503
    assert text.startswith("sweep: stuck")


def test_loop_within_its_announced_sleep_is_live(state: Health, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STUCK_SECONDS", 0.0)
    state.report("sweep", 3600)
    assert get(port, "/healthz")[0] == 200


def test_overdue_loop_is_reported_until_it_ends(state: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    state.report("sweep")
    monkeypatch.setattr(module, "_STUCK_SECONDS", 0.0)
    state.report_waiting()
    assert state.not_alive() != []
    state.remove_loop()
    assert state.not_alive() == []
    state.report_waiting()
    assert state.not_alive() == []


def test_loops_of_one_name_on_two_threads_are_separate(state: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lanes of one topic, as two executors in one process have them: the end of one hides no other."""
    monkeypatch.setattr(module, "_STUCK_SECONDS", 0.0)
    ended = threading.Event()

    def other() -> None:
        state.report("consuming")
        ended.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    state.report("consuming")
    state.remove_loop()
    while not state.not_alive():
        assert thread.is_alive()
    ended.set()
    thread.join()


def test_each_reason_against_readiness_is_a_line(state: Health, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ANSWER_KEPT_SECONDS", 0.0)
    state.requires("database", lambda: "does not answer")
    state.requires("kafka", lambda: None)
    state.requires("executor", lambda: "has not registered yet")
    assert get(port, "/readyz") == (503, "database: does not answer\nexecutor: has not registered yet\n")
    assert get(port, "/healthz") == (200, "ok\n")
    state.requires("database", lambda: None)
    state.requires("executor", lambda: None)
    assert get(port, "/readyz") == (200, "ok\n")


def test_recent_check_result_is_reused(state: Health) -> None:
    asked: list[int] = []
    state.requires("database", lambda: asked.append(1))
    assert state.not_ready() == []
    assert state.not_ready() == []
    assert len(asked) == 1
