"""Addresses of this machine."""

import ipaddress


def is_loopback(host: str | None) -> bool:
    """Whether an address or a name is this machine's own."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
