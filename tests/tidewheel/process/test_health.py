"""Liveness comes from loops, readiness from checks; both are served with a reason per line."""

import threading
from http.client import HTTPConnection
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tidewheel.errors import SettingsError
from tidewheel.process import health as module
from tidewheel.process.health import Health, serve_health


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
    state.requires("executor", lambda: "has not entered yet")
    assert get(port, "/readyz") == (503, "database: does not answer\nexecutor: has not entered yet\n")
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
