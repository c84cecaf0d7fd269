"""Hosts that a server fetches pictures from, and the addresses that a name may lead to.

    example.org              https, port 443
    example.org:8443         https, port 8443
    http://example.org       http, port 80, and https where another entry says so
    127.0.0.1:9000, [::1]    http and https, for nobody else reads what travels there

A name of another machine leads to public addresses alone: whoever can change what it resolves to would otherwise reach
the network of the server. An address that is listed itself may be private.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from edgeformer.errors import RequestError

PORTS = {"http": 80, "https": 443}
LOCAL = "localhost"
NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""Addresses of IPv6 behind which a network puts addresses of IPv4."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class PictureHost:
    """A host that pictures are fetched from. port: None for that of the scheme."""

    name: str
    port: int | None
    schemes: frozenset[str]

    def has(self, url: SplitResult) -> bool:
        """Return whether a URL is of this host. Raises ValueError for a URL whose port is none."""
        port = PORTS.get(url.scheme)
        return url.scheme in self.schemes and url.hostname == self.name and (url.port or port) == (self.port or port)


def read_hosts(entries: Sequence[str]) -> tuple[PictureHost, ...]:
    """Return the hosts that entries name. Raises RequestError for one that names none."""
    return tuple(map(_read, entries))


def _read(entry: str) -> PictureHost:
    scheme, found, rest = entry.partition("://")
    wrong = (
        f"picture_hosts has {entry!r}; an entry is a host with or without a port, such as example.org or "
        "127.0.0.1:9000, or http://HOST for one that is not reached by https."
    )
    try:
        url = urlsplit(f"//{rest if found else entry}")
        name, port = url.hostname, url.port
    except ValueError:
        raise RequestError(wrong) from None
    plain = entry.isascii() and entry.isprintable() and not set(entry) & set(" *\\")
    if not plain or not name or url.path or url.query or url.fragment or url.username is not None:
        raise RequestError(wrong)
    if found and scheme.lower() not in PORTS:
        raise RequestError(wrong)
    if found:
        return PictureHost(name, port, frozenset([scheme.lower()]))
    address = address_of(name)
    near = name == LOCAL or (address is not None and address.is_loopback)
    return PictureHost(name, port, frozenset(PORTS) if near else frozenset(["https"]))


def address_of(name: str) -> Address | None:
    """Return the address that a host is named by; None for a name."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def may_reach(name: str, address: Address) -> bool:
    """Return whether a listed host may be at an address: one that is public, or that it is named by."""
    if name == LOCAL:
        return address.is_loopback
    return address == address_of(name) or all(map(_is_public, _addresses_in(address)))


def _is_public(address: Address) -> bool:
    return address.is_global and not address.is_multicast


def _addresses_in(address: Address) -> list[Address]:
    """Return an address, and that of IPv4 which it stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    inner: list[Address | None] = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in NAT64:
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    found = [each for each in inner if each is not None]
    return found if address.ipv4_mapped is not None else [address, *found]
