"""Addresses that HTTP targets may reach: every spelling of a private one is refused."""

import doctest
from ipaddress import ip_address

import pytest

from tidewheel.executor.runners import addresses as module
from tidewheel.executor.runners.addresses import is_public

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


def test_doctest_examples_run() -> None:
    assert doctest.testmod(module).failed == 0
