"""Secrets of HTTP targets: signatures, certificates of an authority, allowed hosts."""

import hmac
import os
import ssl
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from http.server import HTTPServer
from pathlib import Path

import pytest

from tests.executor.attempting import RUN, attempt_of, run_attempt
from tests.executor.http_target import Answer, HttpTarget, Quiet, Received, answered, call, serving
from tests.fixtures.certificates import Authority
from tidewheel.clock import SystemClock
from tidewheel.errors import SettingsError
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.runners.http import HttpRunner
from tidewheel.executor.runners.secret_store import SecretStore
from tidewheel.http_secrets import read_entry
from tidewheel.runs import AttemptOutcome
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.task_tokens import read_task_token

ENTRY = read_entry("127.0.0.1=Bearer t0k=en=")
REFERENCE = {"Authorization": {"secret": "BILLING"}}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def resolve(host: str, port: int) -> list[str]:
    del host, port
    return ["127.0.0.1"]


def call_signed(
    url: str, store: SecretStore, *, tenant: str = "default", headers: object = REFERENCE, allow_private: bool = True
) -> Outcome:
    attempt = attempt_of({"target": {"type": "http", "url": url, "headers": headers}})
    attempt.definition = replace(attempt.definition, tenant=tenant)
    return run_attempt(lambda: HttpRunner(allow_private=allow_private, store=store, resolve=resolve), attempt)


def sent(target: HttpTarget) -> list[str | None]:
    return [request.headers.get("authorization") for request in target.received]


def put(folder: Path, name: str, value: str | bytes, *hosts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(value if isinstance(value, bytes) else value.encode())
    (folder / f"{name}.hosts").write_text("".join(f"{host}\n" for host in hosts))


def assert_missing(outcome: Outcome, words: str) -> None:
    """It is retried, also at most once, and tells what to do."""
    assert (outcome.kind, outcome.error_type) == (AttemptOutcome.FAILED, "SecretMissing")
    assert (outcome.permanent, outcome.not_started) == (False, True)
    assert words in (outcome.error_message or "")


def assert_refused(outcome: Outcome, words: str) -> None:
    assert (outcome.kind, outcome.error_type) == (AttemptOutcome.FAILED, "SecretRefused")
    assert (outcome.permanent, outcome.not_started) == (True, True)
    assert words in (outcome.error_message or "")
    assert "t0k" not in str(outcome)


def test_secret_is_the_whole_value_of_its_header() -> None:
    headers = {**REFERENCE, "X-Team": "billing", "X-Key": {"secret": "KEY"}}
    store = SecretStore({"BILLING": ENTRY, "KEY": read_entry("127.0.0.1,a.example=k")})
    with serving() as target:
        assert call_signed(target.url(), store, headers=headers).kind is AttemptOutcome.SUCCEEDED
    [request] = target.received
    found = {name: request.headers.get(name) for name in ("authorization", "x-team", "x-key")}
    assert found == {"authorization": "Bearer t0k=en=", "x-team": "billing", "x-key": "k"}


@pytest.mark.parametrize("host", ["127.0.0.2", "localhost", "127.0.0.1.example", "xn--bcher-kva.example"])
def test_secret_is_sent_to_no_host_that_it_does_not_name(host: str) -> None:
    with serving() as target:
        outcome = call_signed(target.url(host=host), SecretStore({"BILLING": ENTRY}))
    assert_refused(outcome, f"secret BILLING must not be sent to {host}")
    assert target.received == []


@pytest.mark.parametrize("host", ["127.1", "0x7f000001", "\uff11\uff12\uff17.0.0.1"])
def test_host_is_compared_as_it_is_called(host: str) -> None:
    with serving() as target:
        assert call_signed(target.url(host=host), SecretStore({"BILLING": ENTRY})).kind is AttemptOutcome.SUCCEEDED
    assert sent(target) == ["Bearer t0k=en="]


def test_secret_is_sent_by_http_to_private_addresses_only() -> None:
    """A name may have another address at the next look-up."""
    store = SecretStore({"BILLING": read_entry("receiver.example=Bearer t0k")})
    with serving() as target:
        assert_refused(call_signed(target.url(host="receiver.example"), store), "only by https")
        outcome = call_signed(target.url(), SecretStore({"BILLING": ENTRY}), allow_private=False)
    assert outcome.error_type == "AddressRefused"
    assert target.received == []


def test_secret_that_is_not_there_is_named_with_its_remedy(tmp_path: Path) -> None:
    with serving() as target:
        assert_missing(
            call_signed(target.url(), SecretStore()), "no secret BILLING of tenant default; set TIDEWHEEL_SECRET_B"
        )
        assert_missing(call_signed(target.url(), SecretStore(folder=tmp_path)), "write the files default/BILLING and")
        assert_missing(call_signed(target.url(), SecretStore(), tenant="acme"), "write the files acme/BILLING and")
    assert target.received == []


def test_tenant_has_no_secret_of_the_environment_or_of_another_tenant(tmp_path: Path) -> None:
    put(tmp_path / "acme", "BILLING", "of acme", "127.0.0.1")
    put(tmp_path / "default", "OTHER", "of default", "127.0.0.1")
    store = SecretStore({"BILLING": ENTRY}, tmp_path)
    with serving() as target:
        assert call_signed(target.url(), store, tenant="acme").kind is AttemptOutcome.SUCCEEDED
        assert call_signed(target.url(), store).kind is AttemptOutcome.SUCCEEDED
        assert_missing(call_signed(target.url(), store, tenant="globex"), "no secret BILLING of tenant globex")
        other = {"Authorization": {"secret": "OTHER"}}
        assert_missing(call_signed(target.url(), store, tenant="acme", headers=other), "no secret OTHER of tenant acme")
    assert sent(target) == ["of acme", "Bearer t0k=en="]


@pytest.mark.parametrize("tenant", ["..", ".", "", "a/b", "../default", "DEFAULT", "a\0"])
def test_tenant_of_a_message_is_no_path(tmp_path: Path, tenant: str) -> None:
    put(tmp_path / "default", "BILLING", "x", "127.0.0.1")
    put(tmp_path, "BILLING", "x", "127.0.0.1")
    with serving() as target:
        assert_missing(call_signed(target.url(), SecretStore(folder=tmp_path / "default"), tenant=tenant), "")
        assert_missing(call_signed(target.url(), SecretStore(folder=tmp_path), tenant=tenant), "")
    assert target.received == []


def test_file_wins_over_the_environment_and_one_line_end_is_no_part_of_it(tmp_path: Path) -> None:
    put(tmp_path / "default", "BILLING", "of a file\n", "127.0.0.1")
    put(tmp_path / "default", "DOS", "of dos\r\n", " 127.0.0.1\r", "")
    store = SecretStore({"BILLING": ENTRY}, tmp_path)
    with serving() as target:
        assert call_signed(target.url(), store).kind is AttemptOutcome.SUCCEEDED
        assert (
            call_signed(target.url(), store, headers={"Authorization": {"secret": "DOS"}}).kind
            is AttemptOutcome.SUCCEEDED
        )
    assert sent(target) == ["of a file", "of dos"]


def test_replaced_file_is_sent_a_second_later_without_a_restart(tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path / "default"
    store = SecretStore(folder=tmp_path, seconds=clock)
    with serving() as target:
        for value, at in (("first", 0.0), ("second", 0.9), ("second", 1.0)):
            put(folder, "BILLING", value, "127.0.0.1")
            clock.now = at
            assert call_signed(target.url(), store).kind is AttemptOutcome.SUCCEEDED
        put(folder, "BILLING", "third", "a.example")
        clock.now = 2.0
        assert_refused(call_signed(target.url(), store), "must not be sent to 127.0.0.1")
        (folder / "BILLING").unlink()
        clock.now = 3.0
        assert_missing(call_signed(target.url(), store), "no secret BILLING")
    assert sent(target) == ["first", "first", "second"]


def test_mounted_kubernetes_secret_is_followed_through_its_replacement(tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path / "default"
    store = SecretStore(folder=tmp_path, seconds=clock)
    put(folder / "..2026_1", "BILLING", "first", "127.0.0.1")
    put(folder / "..2026_2", "BILLING", "second", "127.0.0.1")
    (folder / "..data").symlink_to("..2026_1")
    for name in ("BILLING", "BILLING.hosts"):
        (folder / name).symlink_to(f"..data/{name}")
    with serving() as target:
        assert call_signed(target.url(), store).kind is AttemptOutcome.SUCCEEDED
        (folder / "..next").symlink_to("..2026_2")
        (folder / "..next").rename(folder / "..data")
        clock.now = 1.0
        assert call_signed(target.url(), store).kind is AttemptOutcome.SUCCEEDED
    assert sent(target) == ["first", "second"]


def _link_elsewhere(folder: Path) -> None:
    put(folder.parent.parent / "elsewhere", "BILLING", "t0k", "127.0.0.1")
    for name in ("BILLING", "BILLING.hosts"):
        (folder / name).symlink_to(folder.parent.parent / "elsewhere" / name)


def _link_to_another_tenant(folder: Path) -> None:
    put(folder.parent / "acme", "BILLING", "t0k", "127.0.0.1")
    for name in ("BILLING", "BILLING.hosts"):
        (folder / name).symlink_to(f"../acme/{name}")


def _link_in_a_circle(folder: Path) -> None:
    (folder / "BILLING").symlink_to("BILLING")


def _pipe(folder: Path) -> None:
    put(folder, "BILLING", "t0k", "127.0.0.1")
    (folder / "BILLING").unlink()
    os.mkfifo(folder / "BILLING")


_UNUSABLE: list[tuple[Callable[[Path], object], str]] = [
    (_link_elsewhere, "BILLING points outside the tenant's folder"),
    (_link_to_another_tenant, "BILLING points outside the tenant's folder"),
    (_link_in_a_circle, "Too many levels of symbolic links"),
    (_pipe, "BILLING is not a file"),
    (lambda folder: (folder / "BILLING").mkdir(), "BILLING.hosts is missing"),
    (lambda folder: (folder / "BILLING").write_text("t0k"), "BILLING.hosts is missing; add the hosts"),
    (lambda folder: put(folder, "BILLING", "t0k", "", " "), "BILLING.hosts is empty; add the hosts"),
    (lambda folder: put(folder, "BILLING", "t0k", "*"), "host 1 is not a host"),
    (lambda folder: put(folder, "BILLING", "t0k\n\n", "127.0.0.1"), "character 4 of the value"),
    (lambda folder: put(folder, "BILLING", "t0k\r\nX: 1", "127.0.0.1"), "character 4 of the value"),
    (lambda folder: put(folder, "BILLING", b"t0k\xff", "127.0.0.1"), "character 4 of the value"),
    (lambda folder: put(folder, "BILLING", "", "127.0.0.1"), "the value is empty"),
    (lambda folder: put(folder, "BILLING", "t0k" * 30_000, "127.0.0.1"), "more than 65536 bytes"),
]


@pytest.mark.parametrize(("make", "words"), _UNUSABLE)
def test_unusable_file_is_missing_and_nothing_is_sent(
    tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    """Also where the environment has a secret of that name: an operator replaced it."""
    folder = tmp_path / "secrets" / "default"
    folder.mkdir(parents=True)
    make(folder)
    with serving() as target:
        outcome = call_signed(target.url(), SecretStore({"BILLING": ENTRY}, tmp_path / "secrets"))
    assert_missing(outcome, words)
    assert "t0k" not in str(outcome)
    assert target.received == []


class _Ok(Quiet):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.send_response(204)
        self.end_headers()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "internal")


@pytest.fixture(scope="module")
def url(authority: Authority) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue())
    with HTTPServer(("127.0.0.1", 0), _Ok) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def call_trusting(url: str, ca_file: Path | None) -> Outcome:
    attempt = attempt_of({"target": {"type": "http", "url": url}})
    return run_attempt(lambda: HttpRunner(allow_private=True, ca_file=ca_file), attempt)


def test_target_with_a_certificate_of_the_named_authority_is_called(authority: Authority, url: str) -> None:
    assert call_trusting(url, authority.file).kind is AttemptOutcome.SUCCEEDED


def test_target_with_a_certificate_of_another_authority_is_refused(url: str, tmp_path: Path) -> None:
    for other in (None, Authority(tmp_path, "other").file):
        outcome = call_trusting(url, other)
        assert outcome.kind is AttemptOutcome.FAILED
        assert "CERTIFICATE_VERIFY_FAILED" in str(outcome)


def test_file_without_a_certificate_is_refused_at_start(authority: Authority, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for file in (empty, tmp_path / "missing.pem"):
        with pytest.raises(SettingsError, match=r"TIDEWHEEL_HTTP_CA_FILE: has no PEM certificate.*name a readable"):
            ExecutorSettings.load(http_ca_file=str(file))
    assert ExecutorSettings.load(http_ca_file=str(authority.file)).http_ca_file == authority.file


OLD, NEW = b"the old secret, 24 bytes", b"the new secret, of more than 24 bytes"


def verifies(secret: bytes, request: Received) -> bool:
    """Verify as a receiver does. Source: Standard Webhooks, "Verifying webhook authenticity"."""
    headers = request.headers
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + request.body
    wanted = hmac.digest(secret, signed, sha256)
    given = [each.partition(",") for each in headers["webhook-signature"].split(" ")]
    return any(version == "v1" and hmac.compare_digest(b64decode(text), wanted) for version, _, text in given)


def test_request_is_signed_with_its_id_time_and_body() -> None:
    _, target = answered(job={"payload": {"to": "ann"}}, secrets=(NEW,))
    [request] = target.received
    assert request.headers["webhook-id"] == str(RUN)
    assert abs(int(request.headers["webhook-timestamp"]) - SystemClock().now().timestamp()) < 300
    assert verifies(NEW, request)
    request.body += b" "
    assert not verifies(NEW, request)


def test_during_a_rotation_each_secret_signs() -> None:
    _, target = answered(secrets=(NEW, OLD))
    [request] = target.received
    assert verifies(OLD, request)
    assert verifies(NEW, request)
    assert not verifies(b"another secret altogether", request)


@pytest.mark.parametrize(
    ("host", "secrets"), [*((host, (NEW,)) for host in ("localhost", "127.0.0.2", "example.org", "0.0.1")), ("", ())]
)
def test_without_a_secret_of_its_host_nothing_is_signed(host: str, secrets: tuple[bytes, ...]) -> None:
    """Or each receiver could sign requests to all the others."""
    outcome, target = answered(secrets=secrets, host=host)
    assert outcome.kind == AttemptOutcome.SUCCEEDED
    assert not [name for name in target.received[0].headers if name.startswith("webhook-")]


def test_secret_signs_however_the_url_writes_its_host() -> None:
    with serving() as target:
        call(target.url().replace("127.0.0.1", "0x7f000001"), secrets=(NEW,))
        call(target.url().replace("127.0.0.1", "LocalHost"), secrets=(NEW,), host="localhost")
    assert [verifies(NEW, request) for request in target.received] == [True, True]


def test_task_token_is_sent_to_asynchronous_targets_only() -> None:
    with serving() as target:
        call(target.url(), target={"async": True})
        call(target.url())
    asynchronous, other = target.received
    assert read_task_token(b"of tests", asynchronous.headers["tidewheel-task-token"]) == (RUN, 1)
    assert "tidewheel-task-token" not in other.headers


def test_other_answer_ends_an_asynchronous_run() -> None:
    """Also a failure; a 202 says nothing to others."""
    for status, given in ((202, {}), (200, {"async": True}), (201, {"async": True})):
        outcome, _ = answered(Answer(status, b"done"), target=given)
        assert (outcome.kind, outcome.waits) == (AttemptOutcome.SUCCEEDED, None), status
        assert outcome.result == f'{{"status":{status},"body":"done"}}'.encode()
    outcome, _ = answered(Answer(503), target={"async": True})
    assert (outcome.error_type, outcome.waits) == ("http_503", None)
