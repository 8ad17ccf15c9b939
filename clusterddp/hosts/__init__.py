"""Connections to hosts: a byte pipe to each (`ssh/`), the helper at its end (`client`), many at once (`fanout`)."""
