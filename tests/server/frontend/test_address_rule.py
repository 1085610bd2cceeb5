"""Which addresses count as public."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.frontend.address_rule import is_public_address


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "2a00:1450:4001:80b::200e"])
def test_public(address: str) -> None:
    assert is_public_address(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1", "100.127.255.255", "192.0.0.1", "192.0.0.9", "192.0.0.170", "192.0.2.1", "198.18.0.1",
        "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
        "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1", "100::1",
    ],
)  # fmt: skip
def test_not_public(address: str) -> None:
    assert not is_public_address(address)


@pytest.mark.parametrize(
    "text", ["", "localhost", "127.1", "0x7f.0.0.1", "2130706433", "1.2.3.4.5", "[::1]", "1.2.3.4/8"]
)
def test_what_is_no_address_is_not_public(text: str) -> None:
    assert not is_public_address(text)


def embeddings(address: ipaddress.IPv4Address) -> list[ipaddress.IPv6Address]:
    """Mapped, compatible, NAT64, 6to4, and Teredo (which holds the client's address inverted)."""
    number = int(address)
    return [
        ipaddress.IPv6Address(f"::ffff:{address}"),
        ipaddress.IPv6Address(number),
        ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) | number),
        ipaddress.IPv6Address(0x2002 << 112 | number << 80),
        ipaddress.IPv6Address(0x20010000 << 96 | (number ^ 0xFFFFFFFF)),
    ]


@given(st.ip_addresses(v=4))
def test_an_ipv6_form_is_never_more_public_than_its_ipv4_address(address: ipaddress.IPv4Address) -> None:
    if not is_public_address(str(address)):
        assert [form for form in embeddings(address) if is_public_address(str(form))] == []


def test_a_mapped_public_address_is_public() -> None:
    assert is_public_address("::ffff:8.8.8.8")
