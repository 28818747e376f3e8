"""Servers on other machines whose certificates a connection does not verify."""

import os
import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from psycopg.conninfo import conninfo_to_dict

_VERIFIES = ("verify-ca", "verify-full")
_ALWAYS_VERIFIED = "system"  # libpq refuses a weaker sslmode beside these roots
_ENCRYPTS = ("ssl", "sasl_ssl")
_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
_BROKER = re.compile(r"\s*(?:\w+://)?\[?(?P<host>[^\]]*?)\]?(?::\d+)?\s*")


def unverified_database(url: str, variable: str = "TIDEWHEEL_DATABASE_URL") -> str | None:
    """Return problem and remedy of a connection string that does not verify a server on another machine.

    >>> unverified_database("postgresql://u@db/x?sslmode=require")[:56]
    'TIDEWHEEL_DATABASE_URL names db without sslmode=verify-f'
    >>> unverified_database("host=db sslmode=verify-full"), unverified_database("host=127.0.0.1")
    (None, None)
    """
    parts = conninfo_to_dict(url)
    mode, roots, host, address, service = (
        str(parts.get(name) or os.environ.get(f"PG{name.upper()}") or "")
        for name in ("sslmode", "sslrootcert", "host", "hostaddr", "service")
    )
    named = _elsewhere((host or address or service).split(","))
    if mode in _VERIFIES or roots == _ALWAYS_VERIFIED or named is None:
        return None
    return (
        f"{variable} names {named} without sslmode=verify-full: another server can take its place, and read"
        " the password and all rows; add sslmode=verify-full and sslrootcert"
    )


def unverified_brokers(config: Mapping[str, str]) -> str | None:
    """Return problem and remedy of an unverified broker or token endpoint on another machine.

    >>> unverified_brokers({"bootstrap.servers": "[::1]:9092,kafka:9092"})[:40]
    'the broker kafka is not verified: anothe'
    >>> unverified_brokers({"bootstrap.servers": "kafka:9092", "security.protocol": "SASL_SSL"})
    """
    encrypts = config.get("security.protocol", "").lower() in _ENCRYPTS
    verifies = config.get("enable.ssl.certificate.verification", "true").lower() == "true"
    named = _elsewhere(_host(broker) for broker in config["bootstrap.servers"].split(","))
    if (encrypts and verifies) or named is None:
        return _unverified_provider(config.get(_ENDPOINT, ""))
    return (
        f"the broker {named} is not verified: another server can take its place, and read all messages; set"
        " TIDEWHEEL_KAFKA_CONFIG_SECURITY_PROTOCOL=SASL_SSL or SSL, and leave certificate verification on"
    )


def _unverified_provider(endpoint: str) -> str | None:
    in_clear = endpoint.lower().startswith("http://")
    named = _elsewhere([_host(endpoint.split("/")[2])]) if in_clear else None
    return named and (
        f"the token endpoint {named} is not verified: others can read the client's secret, and its tokens; write"
        f" https:// in TIDEWHEEL_KAFKA_CONFIG_{_ENDPOINT.upper().replace('.', '_')}"
    )


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches an address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _elsewhere(hosts: Iterable[str]) -> str | None:
    """Return the first host that is on another machine; a socket's folder is not."""
    return next((host for host in hosts if host and host[0] not in "/@" and not is_loopback(host)), None)


def _host(broker: str) -> str:
    found = _BROKER.fullmatch(broker)
    return found["host"] if found else broker
