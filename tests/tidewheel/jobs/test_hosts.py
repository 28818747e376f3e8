"""Hosts of HTTP targets: each spelling of an address is that address; impossible names are refused."""

from ipaddress import IPv4Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidewheel.jobs.submitting import refused_job
from tidewheel.executor.runners.http_client import read_place
from tidewheel.jobs.allow_lists import AllowLists
from tidewheel.jobs.http_values import REFUSED, read_url
from tidewheel.jobs.invalid import InvalidValue

# Each is an address that targets must not reach, in a spelling that some client reads as that address.
SPELLINGS = [
    "127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7F.0.0.1", "017700000001", "0177.0.0.1",
    "0x7f.1", "127.0x1", "127.0.0.1.", "2130706433.", "127.000.000.001", "0", "0.0.0.0",  # noqa: S104 - nothing listens here
    "0x0", "00", "10.0.0.1",
    "012.0.0.1", "0xa.1", "167772161", "169.254.169.254", "0xa9fea9fe", "2852039166", "0251.0376.0251.0376",
    "169.254.43518", "0xa9.0376.169.254", "192.168.1", "172.16.1", "100.100.100.200", "255.255.255.255", "4294967295",
    "224.0.0.1", "168.63.129.16",
    "\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021", "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460",
    "\U0001d7cf\U0001d7d0\U0001d7d5.0.0.1", "\uff10x7f.1",
    "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::FFFF:0a00:1]", "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::a00:1]", "[2002:7f00:1::]", "[2002:a9fe:a9fe::1]",
    "[2001:0:1::1]", "[fe80::1]", "[fc00::1]", "[fd00:ec2::254]", "[ff02::1]", "[fec0::1]", "[::ffff:0:127.0.0.1]",
    "localhost", "LOCALHOST", "localhost.", "a.localhost", "\uff4cocalhost",
]  # fmt: skip

BROKEN = [
    "a..b", ".a", ".", "..", "a.example..", "x" * 64, f"a.{'x' * 64}.example", ".".join(["x" * 60] * 5), "a b", "a!b",
    "-a.example", "a.-b.example", "a%2eb", "%31%32%37.0.0.1", "1.2.3.4.5", "256.0.0.1", "127.0.0.08", "0x", "0xg.1.1",
    "1.2.3.0x100", "xn--\u00fc", "xn--.example", "xn--a\u200d",
    "xn--a", "XN--A.example", "xn--a-",
    "\u200d", "b\u00fc\u0301\u0301-\u0600.example", "\u00ad",
    "a\u2024\u2024b", "127.0.0.\u0661", "[::1%25lo]", "[fe80::1%1]", "[::1", "::1]", "[127.0.0.1]", "[v1.a]",
    "[]", "[::g]", "x[::1]", "[::1]x",
    "<a>", "a*b", "a,b", "a;b", "a'b", 'a"b', "a|b", "a{b}", "a^b", "a`b", "$a", "~a", "a=b", "(a)", "a&b", "a+b",
]  # fmt: skip


def refusal(url: str) -> str:
    """Return why a submit with this URL is refused: when it is read, or by the allow-lists."""
    try:
        AllowLists(ports=None).check_url(read_url(url))
    except InvalidValue as error:
        return str(error)
    return ""


@pytest.mark.parametrize("host", SPELLINGS)
def test_spelling_of_a_private_address_is_refused_at_submit(host: str) -> None:
    for url in (f"http://{host}/", f"https://{host}:8443/x?y"):
        assert "targets must not reach" in refusal(url)
        AllowLists(ports=None, allow_private=True).check_url(read_url(url))


@pytest.mark.parametrize("host", SPELLINGS)
def test_host_is_read_alike_at_submit_and_at_the_call(host: str) -> None:
    url = f"http://{host}/"
    assert read_place(url).url.host == read_url(url).host.text


@pytest.mark.parametrize("host", BROKEN)
def test_host_that_cannot_exist_is_refused_at_submit_and_at_the_call(host: str) -> None:
    url = f"http://{host}/"
    assert "job.target.url" in refused_job(target={"type": "http", "url": url})
    with pytest.raises(InvalidValue):
        read_place(url)


@pytest.mark.parametrize(
    "userinfo", ["u:p@", "u@", "@", ":@", "1.1.1.1@", "1.1.1.1%40", "u:p@v@", "1.1.1.1#@", "1.1.1.1\\@"]
)
def test_user_name_never_hides_the_host(userinfo: str) -> None:
    url = f"http://{userinfo}127.0.0.1/"
    if read := userinfo == "1.1.1.1#@":  # what follows is a fragment: the host is the first
        assert read_url(url).host.text == "1.1.1.1"
    else:
        assert "job.target.url" in refused_job(target={"type": "http", "url": url})
        with pytest.raises(InvalidValue):
            read_place(url)
    assert read or "name a secret of the executor" in refusal("http://u@a.example/")


@pytest.mark.parametrize(
    "url",
    ["http://a:0/", "http://a:65536/", "http://a:x/", "http://a:-1/", "http://a:8_0/", "http://a:\u0661/", "ftp://a/"],
)
def test_url_that_nothing_answers_is_refused(url: str) -> None:
    with pytest.raises(InvalidValue):
        read_url(url)


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://A.example./", "a.example.", 80),
        ("https://my_service.internal", "my_service.internal", 443),
        ("http://b\u00fccher.example:81", "xn--bcher-kva.example", 81),
        ("http://xn--i-7iq.ws", "xn--i-7iq.ws", 80),  # a heart: no letter of IDNA 2008, and registered
        ("http://fa\u00df.example:", "xn--fa-hia.example", 80),
        ("http://1.1.1.1", "1.1.1.1", 80),
        ("http://1a.example", "1a.example", 80),
        ("http://[2606:4700:0::1111]:8080", "2606:4700::1111", 8080),
    ],
)
def test_host_and_port_are_those_of_the_call(url: str, host: str, port: int) -> None:
    read = read_url(url)
    assert (read.host.text, read.called_port, read.host.is_local) == (host, port, False)


PRIVATE_V4 = st.sampled_from([each for each in REFUSED if each.version == 4]).flatmap(
    lambda network: st.integers(int(network[0]), int(network[-1])).map(IPv4Address)
)


@given(
    PRIVATE_V4,
    st.sampled_from(["{0}", "{0:#x}", "0{0:o}", "{1}.{2}", "{1:#x}.{2}", "0{1:o}.{3}.{4}", "{1}.{3:#x}.{5}.{6}"]),
    st.sampled_from(["", "."]),
    st.sampled_from([{}, {n: n + 0xFEE0 for n in range(0x30, 0x3A)}]),  # full-width digits
)
def test_any_spelling_of_a_private_address_is_refused(
    address: IPv4Address, spelling: str, end: str, letters: dict[int, int]
) -> None:
    n = int(address)
    parts = (n, n >> 24, n & 0xFFFFFF, n >> 16 & 0xFF, n & 0xFFFF, n >> 8 & 0xFF, n & 0xFF)
    host = (spelling.format(*parts) + end).translate(letters)
    assert read_url(f"http://{host}/").host.address == ip_address(n)
    assert "targets must not reach" in refusal(f"http://{host}/")


@given(st.text(max_size=80))
def test_any_text_is_a_url_or_an_invalid_value(text: str) -> None:
    for url in (text, f"http://{text}", f"http://{text}/", f"http://[{text}]/"):
        try:
            read = read_url(url)
        except InvalidValue:
            continue
        assert read.host.text.isascii()
        assert str(read_place(url).url).isascii()
