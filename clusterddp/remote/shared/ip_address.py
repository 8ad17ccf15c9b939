"""IP addresses that another machine has sent: checked, and written in one way."""

import ipaddress


def plain_address(text: str) -> str:
    """The address in its usual form; an IPv6 zone (``fe80::1%eth0``) is refused, since any text may follow the ``%``.

    Raises:
        ValueError, TypeError: it is no IP address.
    """
    if "%" in text:
        raise ValueError("%r is not the address of one machine" % text)
    return str(ipaddress.ip_address(text))
