"""Addresses that HTTP targets may not reach, and what answers may not repeat."""

import html
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.executor.http_target import Answer, call, call_message, serving
from tests.executor.http_target import HttpTarget as Receiver
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.runners.http import redactor_of
from tidewheel.executor.runners.http_client import read_place
from tidewheel.executor.runners.http_transport import AddressGuard, AddressRefused
from tidewheel.executor.runners.secret_store import SecretStore
from tidewheel.http_secrets import read_entry
from tidewheel.jobs.http_values import REFUSED, is_public
from tidewheel.redaction import REDACTED
from tidewheel.runs import AttemptOutcome
from tidewheel.schemas.generated.records import HttpTarget
from tidewheel.settings.connections import Connections

INSIDE = [
    "0.0.0.0",  # noqa: S104 - nothing listens here
    "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.0.1",
    "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1", "192.168.0.1", "198.18.0.1",
    "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "::1", "fc00::1", "fd00:ec2::254", "fdff:ffff::1", "fe80::1", "febf::1", "ff02::1", "ff05::2", "2001:db8::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a00:1",
    "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::", "2002:a9fe:a9fe::", "2002:c0a8:1::1", "2001:0:1::1",
    "2001:0000:4136:e378:8000:63bf:3fff:fdd2", "::7f00:1", "::127.0.0.1", "::a9fe:a9fe", "::10.0.0.1",
    "::ffff:0:7f00:1", "64:ff9b:1::7f00:1", "64:ff9b:1:a9fe:a9:fe00::", "fec0::1", "100::1",
]  # fmt: skip
OUTSIDE = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450:4001::1", "::ffff:1.1.1.1",
           "64:ff9b::101:101", "2002:101:101::"]  # fmt: skip


@pytest.mark.parametrize("text", INSIDE)
def test_private_address_is_refused(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize("text", OUTSIDE)
def test_public_address_is_allowed(text: str) -> None:
    assert is_public(ip_address(text))


# Every entry of IANA's two registries of special-purpose addresses, and what clouds use for metadata. The three entries
# that an IPv4 address decides are tested below.
REGISTRIES = [
    "0.0.0.0/8", "0.0.0.0/32", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.0.0.0/29", "192.0.0.8/32", "192.0.0.9/32", "192.0.0.10/32", "192.0.0.170/32", "192.0.0.171/32",
    "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.88.99.2/32", "192.168.0.0/16",
    "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "255.255.255.255/32",
    "224.0.0.0/4", "168.63.129.16/32", "169.254.169.254/32", "169.254.170.2/32", "100.100.100.200/32", "192.0.0.192/32",
    "::1/128", "::/128", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001::/32", "2001:1::1/128",
    "2001:1::2/128", "2001:1::3/128", "2001:2::/48", "2001:3::/32", "2001:4:112::/48", "2001:10::/28", "2001:20::/28",
    "2001:30::/28", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10",
    "ff00::/8", "fec0::/10", "fd00:ec2::254/128", "fd20:ce::254/128",
]  # fmt: skip
ANY_V4 = st.integers(0, 2**32 - 1).map(IPv4Address)
PRIVATE_V4 = st.sampled_from([each for each in REFUSED if each.version == 4]).flatmap(
    lambda network: st.integers(int(network[0]), int(network[-1])).map(IPv4Address)
)
ANY_V6 = st.integers(0, 2**128 - 1).map(IPv6Address)


@pytest.mark.parametrize("network", [*REGISTRIES, *map(str, REFUSED)])
def test_first_and_last_address_of_a_special_network_is_refused(network: str) -> None:
    found = ip_network(network)
    assert not is_public(found[0])
    assert not is_public(found[-1])


@given(ANY_V4)
def test_ipv4_inside_ipv6_is_judged_as_the_ipv4_address(inner: IPv4Address) -> None:
    number = int(inner)
    for outer in (0xFFFF << 32 | number, 0x64FF9B << 96 | number, 0x2002 << 112 | number << 80 | 1):
        assert is_public(IPv6Address(outer)) == is_public(inner)


@given(ANY_V4 | ANY_V6 | PRIVATE_V4 | st.integers(0x2 << 124, (0x4 << 124) - 1).map(IPv6Address))
def test_no_address_is_allowed_that_the_interpreter_calls_local(address: IPv4Address | IPv6Address) -> None:
    if is_public(address):
        inner = isinstance(address, IPv6Address) and (address in ip_network("64:ff9b::/96") or address.sixtofour)
        assert address.is_global or inner
        assert not address.is_multicast
    if isinstance(address, IPv6Address) and address.exploded[0] not in "23":
        assert not is_public(address) or address.ipv4_mapped or address in ip_network("64:ff9b::/96")


@given(PRIVATE_V4 | st.sampled_from(INSIDE).map(ip_address), st.sampled_from(["", "%1", "%eth0"]))
def test_no_socket_is_made_for_a_private_address(address: IPv4Address | IPv6Address, scope: str) -> None:
    guard = AddressGuard(allow_private=False)
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    host = str(address) + (scope if address.version == 6 else "")
    with pytest.raises(AddressRefused):
        guard.make_socket((family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, 80)))


def test_socket_of_a_public_or_permitted_address_is_made() -> None:
    for host, allowed in (("1.1.1.1", False), ("127.0.0.1", True)):
        guard = AddressGuard(allow_private=allowed)
        guard.make_socket((socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, 80))).close()


@given(
    PRIVATE_V4,
    st.sampled_from(["{}", "{:#x}", "0{:o}", "{0}.{1}", "{0:#x}.{1}", "0{0:o}.{2}.{3}", "{0}.{2:#x}.{4}.{5}"]),
)
def test_spelling_of_a_private_address_does_not_pass(address: IPv4Address, spelling: str) -> None:
    """As the C library reads it: one to four numbers, each decimal, octal or hexadecimal."""
    number = int(address)
    one, *others = (
        number >> 24,
        number & 0xFFFFFF,
        number >> 16 & 0xFF,
        number & 0xFFFF,
        number >> 8 & 0xFF,
        number & 0xFF,
    )
    host = spelling.format(number) if spelling.count("{") == 1 else spelling.format(one, *others)
    [outcome] = call(f"http://{host}:9/", allow_private=False)
    assert (outcome.error_type, outcome.permanent, outcome.not_started) == ("AddressRefused", True, True)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "LOCALHOST", "127.1", "0.0.0.1", "2130706433", "\uff11\uff12\uff17.0.0.1", "[::1]",
        "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]",
    ],
)  # fmt: skip
def test_host_with_a_private_address_does_not_pass(host: str) -> None:
    with serving() as target:
        [outcome] = call(target.url(host=host), allow_private=False)
    assert (outcome.error_type, outcome.permanent, outcome.not_started) == ("AddressRefused", True, True)
    assert "TIDEWHEEL_HTTP_ALLOW_PRIVATE" in (outcome.error_message or "")
    assert target.connections == 0


@pytest.mark.parametrize(
    "url",
    ["http://a..b/", f"http://{'x' * 64}.example/", "http://1.2.3.4.5/", "http://[fe80::1%25lo]/", "http://u:p@a/"],
)
def test_host_that_can_never_be_called_is_not_retried(url: str) -> None:
    outcome = call_message(url)
    assert (outcome.error_type, outcome.permanent, outcome.not_started) == ("InvalidURL", True, True)


def test_job_calls_named_hosts_and_ports_only() -> None:
    """By the executor's own lists, whatever intake has let through."""
    with serving() as target:
        for settings in ({"http_hosts": "localhost"}, {"http_ports": "80"}, {"http_hosts": "*.example.org"}):
            lists = Connections.load(http_allow_private=True, **settings).allow_lists(enforces=True)
            outcome = call_message(target.url(), allow_lists=lists)
            assert (outcome.error_type, outcome.permanent, outcome.not_started) == ("AddressRefused", True, True)
            assert "TIDEWHEEL_HTTP_" in (outcome.error_message or "")
        assert target.connections == 0
        lists = Connections.load(
            http_allow_private=True, http_hosts="127.0.0.1", http_ports=str(target.port)
        ).allow_lists(enforces=True)
        assert call_message(target.url(), allow_lists=lists).kind is AttemptOutcome.SUCCEEDED
        assert target.connections == 1


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("http://a.example", "http://a.example/"),
        ("http://a.example:80/x", "http://a.example/x"),
        ("http://a.example/%7e%2F+?a=%7E+%20&b=1#c", "http://a.example/%7e%2F+?a=%7E+%20&b=1"),
        ("https://a.example/ü%zz?ü={}|", "https://a.example/%C3%BC%25zz?%C3%BC={}|"),
        ("http://[2606:4700::1]:81/", "http://[2606:4700::1]:81/"),
    ],
)
def test_url_is_sent_as_written(written: str, sent: str) -> None:
    assert str(read_place(written).url) == sent


@pytest.mark.parametrize("url", ["ftp://a.example/", "http:///x", "http://a.example:99999/", "x", "http://[::1/"])
def test_text_without_a_host_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_place(url)


CANARY = 'canary-3f1"c9/a'
STORE = SecretStore({"CRM": read_entry(f"127.0.0.1=Bearer {CANARY}")})
MARK = "[secret CRM]"


def outcome_of(answer: Answer) -> tuple[Outcome, Receiver]:
    with serving(answer) as receiver:
        [outcome] = call(
            receiver.url(), target={"headers": {"Authorization": {"secret": "CRM"}}}, allow_private=True, store=STORE
        )
    assert receiver.received[0].headers["authorization"] == f"Bearer {CANARY}"
    return outcome, receiver


@pytest.mark.parametrize(
    "echo",
    [
        f"it is Bearer {CANARY}",
        CANARY,
        '{"token":"canary-3f1\\"c9/a"}',
        "canary-3f1%22c9/a",
        "canary-3f1%22c9%2Fa",
        html.escape(CANARY),
        '{"authorization": "Bearer canary-3f1\\"c9/a"}',
        f"webhook-signature: v1,c2ln, authorization: Bearer {CANARY}",
    ],
)
@pytest.mark.parametrize("status", [200, 400, 500])
def test_secret_in_a_body_is_replaced_by_its_name(status: int, echo: str) -> None:
    outcome, _ = outcome_of(Answer(status, echo.encode()))
    kept = (outcome.result or b"").decode() + (outcome.error_message or "")
    assert "canary" not in kept
    assert MARK in kept
    assert kept.replace(MARK, "").count("]") == kept.replace(MARK, "").count("[redacted]")


@pytest.mark.parametrize(
    ("location", "said"),
    [
        (f"https://example.org/{CANARY}", f"/{MARK}"),
        (f"http://x/?Bearer {CANARY}", f"a redirect to http://x/?{MARK}, which"),
    ],
)
def test_secret_in_a_location_is_replaced_by_its_name(location: str, said: str) -> None:
    outcome, _ = outcome_of(Answer(302, headers={"Location": location}))
    assert outcome.error_message is not None
    assert "canary" not in outcome.error_message
    assert said in outcome.error_message


def test_secret_that_the_limit_of_a_body_cuts_is_replaced() -> None:
    secret = f"Bearer {CANARY}"
    outcome, _ = outcome_of(Answer(200, b"x" * (48 * 1024 - len(secret) + 1) + secret.encode()))
    assert outcome.result is not None
    assert b"canary" not in outcome.result
    assert outcome.result.endswith(f'{MARK}"}}'.encode())


def test_body_without_the_secret_stays() -> None:
    outcome, _ = outcome_of(Answer(200, b'{"a":"Bearer of news"}'))
    assert outcome.result == b'{"status":200,"body":"{\\"a\\":\\"Bearer of news\\"}"}'


def test_literal_credential_of_an_older_job_is_redacted() -> None:
    """Other headers are no credentials, and stay."""
    headers = {"X-Api-Key": CANARY, "X-Day": "monday"}
    old = HttpTarget(method="POST", url="http://a.example", headers=headers)
    assert redactor_of(old, headers).redact(f"monday {CANARY}") == f"monday {REDACTED}"


@pytest.mark.parametrize("kept", [5, 12, 20])
def test_secret_of_a_known_form_at_the_cut_of_a_message_is_redacted(kept: int) -> None:
    """Its form ends behind the cut: `user:password` is none without the `@` and the host."""
    url = "https://ann:canary-of-a-url@example.org/"
    outcome, _ = outcome_of(Answer(500, f"{'x' * (1023 - len('https://ann:') - kept)} {url}".encode()))
    assert outcome.error_message is not None
    assert "canary"[:5] not in outcome.error_message
