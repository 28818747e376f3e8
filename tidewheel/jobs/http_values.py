"""Hosts, URLs and headers of targets, read in one way at submit and at the call.

A host has many spellings: `127.1`, `0x7f000001`, full-width digits, a trailing dot. Each is read into the address that
is connected to, or into the name in ASCII. A name that no name server can hold is an error before any look-up.
"""

import re
import socket
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

from tidewheel.errors import FieldError
from tidewheel.jobs.invalid import InvalidValue, UnreadableValue
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.validation import StrictModel, not_valid, shown
from tidewheel.redaction import CREDENTIAL_HEADERS, REDACTED

MAX_URL = 2048

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_REMEDY = "write a URL such as https://example.org/report"
_CREDENTIALS = 'leave it out, and name a secret of the executor: headers {"Authorization": {"secret": "NAME"}}'
_BRACKETED = re.compile(r"\[[^\[\]]*\](:\d*)?", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_LABEL = re.compile(
    r"[a-z0-9_][a-z0-9_-]{0,62}", re.ASCII
)  # Source: RFC 1123 section 2.1; '_' as many resolvers take it
_NO_LETTER = frozenset(("Cc", "Co", "Cs", "Zl", "Zp", "Zs"))  # Cf and Cn may be valid: a joiner, a new script
_MAX_NAME = 253  # Source: RFC 1035 section 2.3.4, without the length bytes

# The refused networks. Sources: IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890) with every entry, also
# those that are globally reachable, for no target is there; IANA IPv4 Multicast (RFC 5771) and IPv6 Address Space (RFC
# 4291), in which 2000::/3 alone is global unicast; the documentation of cloud providers for their metadata addresses.
_REFUSED = """
0.0.0.0/8            this network, RFC 791
10.0.0.0/8           private, RFC 1918
100.64.0.0/10        shared, RFC 6598; has 100.100.100.200, the metadata of Alibaba Cloud
127.0.0.0/8          loopback, RFC 1122
168.63.129.16/32     metadata of Azure ("What is IP address 168.63.129.16?")
169.254.0.0/16       link-local, RFC 3927; has 169.254.169.254, metadata, and 169.254.170.2, credentials of AWS ECS
172.16.0.0/12        private, RFC 1918
192.0.0.0/24         IETF protocol assignments, RFC 6890; has 192.0.0.192, the metadata of Oracle Cloud
192.0.2.0/24         documentation, RFC 5737
192.31.196.0/24      AS112, RFC 7535
192.52.193.0/24      automatic multicast tunneling, RFC 7450
192.88.99.0/24       6to4 relay, RFC 7526
192.168.0.0/16       private, RFC 1918
192.175.48.0/24      AS112, RFC 7534
198.18.0.0/15        benchmarking, RFC 2544
198.51.100.0/24      documentation, RFC 5737
203.0.113.0/24       documentation, RFC 5737
224.0.0.0/4          multicast, RFC 5771
240.0.0.0/4          reserved, RFC 1112; has the limited broadcast, RFC 919
::/3                 no global unicast: unspecified, loopback, 64:ff9b:1::/48 (RFC 8215), 100::/64, 100:0:0:1::/64
2001::/23            IETF protocol assignments, RFC 2928: Teredo, benchmarking, ORCHID and others
2001:db8::/32        documentation, RFC 3849
2620:4f:8000::/48    AS112, RFC 7534
3fff::/20            documentation, RFC 9637
4000::/2             no global unicast: 5f00::/16 (RFC 9602)
8000::/1             no global unicast: unique-local with fd00:ec2::254 of AWS, link-local, site-local, multicast
"""
REFUSED: tuple[Network, ...] = tuple(ip_network(line.split()[0]) for line in _REFUSED.strip().splitlines())

# The bits above an IPv4 address that alone decides: IPv4-mapped (RFC 4291 section 2.5.5.2), NAT64 (RFC 6052), 6to4 (RFC
# 3056). They are in the registries too.
_WITH_V4 = ((IPv6Network("::ffff:0:0/96"), 0), (IPv6Network("64:ff9b::/96"), 0), (IPv6Network("2002::/16"), 80))

MAX_HEADERS = 32
MAX_HEADER = 1024

SECRET_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)  # as in TIDEWHEEL_SECRET_<NAME>; no path can be made of it

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}", re.ASCII)  # Source: RFC 9110 section 5.6.2, "Tokens"
NOT_IN_A_VALUE = re.compile(r"[^\x20-\x7e\t]")  # Source: RFC 9110 section 5.5, "Field Values"; sent as ASCII
_OWN_HEADERS = frozenset(
    ("connection", "content-length", "host", "idempotency-key", "te", "trailer", "traceparent", "transfer-encoding")
)
_OWN_PREFIXES = ("tidewheel-", "webhook-", "proxy-")


class Host(NamedTuple):
    """A host as it is connected to.

    Attributes:
        text: The address, or the name in ASCII and in lower case; a trailing dot of a name stays.
        address: The address that it spells; None for a name.
        is_local: True if it is private by itself, without a look-up.
    """

    text: str
    address: Address | None
    is_local: bool

    @property
    def name(self) -> str:
        """The text without a trailing dot."""
        return self.text.removesuffix(".")


class TargetUrl(NamedTuple):
    """The parts of a target's URL; `port` is the written one."""

    scheme: str
    host: Host
    port: int | None
    path: str
    query: str

    @property
    def called_port(self) -> int:
        """The port that is connected to."""
        return self.port or (443 if self.scheme == "https" else 80)


@lru_cache(maxsize=1024)
def read_url(text: str) -> TargetUrl:
    """Return the parts of a target's URL.

    >>> read_url("http://0x7f.1:8080/a?b").host.address
    IPv4Address('127.0.0.1')
    """
    if len(text) > MAX_URL:
        raise InvalidValue(problem=f"has {len(text)} characters", remedy=f"write at most {MAX_URL}")
    if not text.isprintable() or re.search(r"[\s\\]", text):
        raise InvalidValue(problem=f"{_shown(text)} is not an absolute http or https URL", remedy=_REMEDY)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        why = "" if "@" in text else f" ({error})"
        raise InvalidValue(problem=f"{_shown(text)} is not a URL{why}", remedy=_REMEDY) from error
    if "@" in parts.netloc:
        raise InvalidValue(problem="contains a user name or password", remedy=_CREDENTIALS)
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidValue(problem=f"{_shown(text)} is not an absolute http or https URL", remedy=_REMEDY)
    if port == 0:
        raise InvalidValue(problem="port 0 cannot be called", remedy="write another port, or leave it out")
    bracketed = parts.netloc.startswith("[")
    if bracketed and not _BRACKETED.fullmatch(parts.netloc):
        raise InvalidValue(problem=f"{_shown(text)} is not a URL", remedy=_REMEDY)
    return TargetUrl(parts.scheme, read_ipv6(host) if bracketed else read_host(host), port, parts.path, parts.query)


def _shown(text: str) -> str:
    """Return a URL as errors show it: without its query, and not at all with a user name or password."""
    place = re.split(r"[?#]", text, maxsplit=1)[0]
    return "it" if "@" in place else shown(place)


def read_ipv6(text: str) -> Host:
    """Return the host that an IPv6 address spells."""
    try:
        address = IPv6Address(text)
    except ValueError as error:
        raise InvalidValue(problem=f"{shown(text)} is not an IPv6 address", remedy="write [2001:db8::1]") from error
    if address.scope_id is not None:
        remedy = "leave out '%' and what follows, which names an interface of one machine"
        raise InvalidValue(problem=f"{shown(text)} has a scope", remedy=remedy)
    return Host(str(address), address, not is_public(address))


def read_host(text: str) -> Host:
    """Return the host of a name, or of an IPv4 address in any of its spellings.

    >>> read_host("B\u00fccher.example").text, read_host("\uff11\uff12\uff17.1").address
    ('xn--bcher-kva.example', IPv4Address('127.0.0.1'))
    """
    name = (text if text.isascii() else _to_ascii(text)).lower()
    bare = name.removesuffix(".")
    labels = bare.split(".")
    # Source: WHATWG URL, "ends in a number checker": such a host is an IPv4 address or nothing.
    if _NUMBER.fullmatch(labels[-1]):
        try:
            address = IPv4Address(socket.inet_aton(bare))
        except OSError as error:
            remedy = "write four numbers up to 255, or a name"
            raise InvalidValue(problem=f"{shown(text)} is not an IPv4 address", remedy=remedy) from error
        return Host(str(address), address, not is_public(address))
    bad = next((label for label in labels if not _LABEL.fullmatch(label) or not _is_encoded(label)), None)
    if bad is not None:
        problem = f"{shown(text)} is not a host name: {shown(bad)} is invalid"
        remedy = "write parts of 1 to 63 letters, digits, '-' and '_', separated by dots"
        raise InvalidValue(problem=problem, remedy=remedy)
    if len(bare) > _MAX_NAME:
        raise InvalidValue(problem=f"the host name has {len(bare)} characters", remedy=f"write at most {_MAX_NAME}")
    local = bare == "localhost" or bare.endswith(".localhost")  # Source: RFC 6761 section 6.3
    return Host(name, None, local)


def is_public(address: Address) -> bool:
    """Return True if targets may reach an address without a permission.

    >>> from ipaddress import ip_address
    >>> [is_public(ip_address(text)) for text in ("127.0.0.1", "::ffff:10.0.0.1", "1.1.1.1")]
    [False, False, True]
    """
    if isinstance(address, IPv6Address):
        address = IPv6Address(int(address))  # without a scope id, with which it equals no other address
        for network, bits in _WITH_V4:
            if address in network:
                return is_public(IPv4Address(int(address) >> bits & 0xFFFFFFFF))
    return not any(address in network for network in REFUSED)


def _is_encoded(label: str) -> bool:
    """Return False for a label in the ASCII form of other letters that encodes none."""
    if not label.startswith("xn--"):
        return True
    try:
        letters = label[4:].encode().decode("punycode")
    except UnicodeError:
        return False
    return not letters.isascii() and not any(unicodedata.category(letter) in _NO_LETTER for letter in letters)


def _to_ascii(text: str) -> str:
    import idna  # not at the top: its tables take 1 MB, and few hosts need them

    try:
        return idna.encode(text, uts46=True).decode()
    except UnicodeError as error:
        problem = f"{shown(text)} is not an internationalised host name ({error})"
        raise InvalidValue(problem=problem, remedy="write it in ASCII, such as xn--bcher-kva.example") from error


class SecretReference(StrictModel):
    """A header's value that the executor alone has: the secret's name."""

    secret: str


def read_headers(value: object) -> dict[str, str | SecretReference]:
    """Return the headers that an object describes; the path of an InvalidValue is the header's name."""
    read: dict[str, str | SecretReference] = {}
    seen: set[str] = set()
    for name, content in _object(value).items():
        _check_name(name)
        if isinstance(content, SecretReference) or as_object(content) is not None:
            read[name] = _reference(name, content)
        else:
            read[name] = _text(name, content)
        if name.lower() in seen:
            raise InvalidValue(problem=f"the header {name!r} is given twice", remedy="give it once", path=name)
        seen.add(name.lower())
    return read


def read_literal_headers(value: object) -> dict[str, str]:
    """Return the headers of a target that has no secrets."""
    literal: dict[str, str] = {}
    for name, content in read_headers(value).items():
        if isinstance(content, SecretReference):
            problem = "only targets of type http can have secret headers"
            raise InvalidValue(problem=problem, remedy="leave it out, or use a target of type http", path=name)
        literal[name] = content
    return literal


def merged_headers(headers: Mapping[str, str], secret_headers: Mapping[str, str]) -> dict[str, object]:
    """Return the headers of an Avro request as JSON requests have them."""
    both = UnreadableValue("is in both headers and secret_headers", "write it in one only")
    secrets = {name: both if name in headers else {"secret": secret} for name, secret in secret_headers.items()}
    return {**headers, **secrets}


def refuse_literal_credentials(headers: object) -> object:
    """Return the headers of an HTTP target as they are, unless one has a credential as its value.

    A job names a secret of the executors there. The list is by name alone. A value is never examined: a rule that
    guesses refuses honest headers and misses secrets.

    Raises:
        InvalidValue: Some have; no error shows a value.
    """
    problem, remedy = "is a credential", 'write {"secret": "NAME"} and set TIDEWHEEL_SECRET_NAME on the executors'
    literal = [name for name, value in (as_object(headers) or {}).items() if is_literal_credential(name, value)]
    if literal:
        raise InvalidValue.of([FieldError(name, problem, remedy) for name in literal])
    return headers


def without_literal_credentials(headers: Mapping[str, object]) -> dict[str, object]:
    """Return headers as output shows them: credentials of a row that an older release stored are redacted."""
    return {name: REDACTED if is_literal_credential(name, value) else value for name, value in headers.items()}


def is_literal_credential(name: str, value: object) -> bool:
    """Return True if a header is a credential and its value is one: no reference, nor unreadable.

    >>> is_literal_credential("X-API-Key", "k"), is_literal_credential("X-API-Key", {"secret": "CRM"})
    (True, False)
    """
    is_other = isinstance(value, SecretReference | UnreadableValue) or as_object(value) is not None
    return name.lower() in CREDENTIAL_HEADERS and not is_other


def _object(value: object) -> dict[str, object]:
    if (given := as_object(value)) is None:
        raise not_valid(value, "write an object of names and values")
    if len(given) > MAX_HEADERS:
        raise InvalidValue(problem=f"there are {len(given)} headers", remedy=f"write at most {MAX_HEADERS}")
    return given


def _check_name(name: str) -> None:
    if not _TOKEN.fullmatch(name):
        raise InvalidValue(
            problem=f"{shown(name)} is not a header name", remedy="write 1 to 64 letters, digits and hyphens"
        )
    if name.lower() in _OWN_HEADERS or name.lower().startswith(_OWN_PREFIXES):
        raise InvalidValue(problem="Tidewheel sets this header itself", remedy="leave it out", path=name)


def _reference(name: str, value: object) -> SecretReference:
    if isinstance(value, SecretReference):
        return value
    given = as_object(value) or {}
    if list(given) != ["secret"]:
        # The names alone: a value beside the reference may be the secret itself.
        problem = "is an object with fields other than secret" if given else "is an empty object"
        remedy = 'write text, or only {"secret": "NAME"}; the secret is the whole value of the header'
        raise InvalidValue(problem=problem, remedy=remedy, path=name)
    secret = given["secret"]
    if not isinstance(secret, str) or not SECRET_NAME.fullmatch(secret):
        # Not shown: it may be the secret, written where its name belongs.
        problem = "is not the name of a secret"
        remedy = "write 1 to 64 of A-Z, 0-9 and '_', a letter first, such as BILLING for TIDEWHEEL_SECRET_BILLING"
        raise InvalidValue(problem=problem, remedy=remedy, path=f"{name}.secret")
    return SecretReference(secret=secret)


def _text(name: str, content: object) -> str:
    if isinstance(content, UnreadableValue):
        raise InvalidValue(problem=content.problem, remedy=content.remedy, path=name)
    if not isinstance(content, str) or len(content) > MAX_HEADER:
        remedy = f"write one line of at most {MAX_HEADER} characters"
        problem = "the text is too long" if isinstance(content, str) else f"{shown(content)} is not valid"
        raise InvalidValue(problem=problem, remedy=remedy, path=name)
    if found := NOT_IN_A_VALUE.search(content):
        remedy = "write one line of ASCII; percent-encode the rest, or send it in the payload"
        raise InvalidValue(problem=f"contains {found.group()!a}, which headers cannot have", remedy=remedy, path=name)
    if content != content.strip():
        raise InvalidValue(problem="begins or ends with a space, which headers drop", remedy="remove it", path=name)
    return content
