"""Check IP addresses that another machine has sent."""

import socket


def is_address(text: str) -> bool:
    """Whether a text is one IPv4 or IPv6 address in its numeric form.

    A name is none: to look it up could take any time. Nor is an IPv6 address with a zone (``fe80::1%eth0``), since any
    text could follow the ``%``.
    """
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)
    except (OSError, ValueError):
        return False
    return True
