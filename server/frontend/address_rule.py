"""Which network addresses an image may be fetched from: those of the public internet, in whatever form they come."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_V4_PROTOCOL_ASSIGNMENTS = IPv4Network("192.0.0.0/24")
_NAT64 = IPv6Network("64:ff9b::/96")
_IPV4_COMPATIBLE = IPv6Network("::/96")


def is_public_address(text: str) -> bool:
    """Whether everybody can reach it, by IANA's registries of special-purpose addresses.

    An IPv6 address that stands for an IPv4 one (mapped, 6to4, NAT64, Teredo) is as public as that. What is no address
    is not public.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv4Address):
        return _is_public_v4(address)
    return _is_public_v6(address)


def _is_public_v4(address: IPv4Address) -> bool:
    if address in _V4_PROTOCOL_ASSIGNMENTS:  # all of it, though the registry calls two of its addresses global
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _is_public_v6(address: IPv6Address) -> bool:
    if address.scope_id is not None or address.is_multicast or address.is_site_local:
        return False
    embedded = _embedded_v4(address)
    if embedded is not None:
        return _is_public_v4(embedded)
    return address.is_global and not address.is_reserved


def _embedded_v4(address: IPv6Address) -> IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or address in _IPV4_COMPATIBLE:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None
