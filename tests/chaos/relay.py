"""Hands on every connection and datagram to somebody else: `relay.py ADDRESS PORT TARGET TARGETPORT FILE`.

The file grows by a byte for each piece that went through, either way.
"""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path


def pump(source: socket.socket, sink: socket.socket, told: Path) -> None:
    """Until one of them ends."""
    try:
        while data := source.recv(1 << 16):
            with told.open("ab") as file:
                file.write(b".")
            sink.sendall(data)
    except OSError:
        pass
    finally:
        for end in (source, sink):
            end.close()


def main(words: list[str]) -> None:
    address, port, target, target_port, told = words
    server = socket.create_server((address, int(port)))
    while True:
        caller, _ = server.accept()
        try:
            called = socket.create_connection((target, int(target_port)), timeout=5)
        except OSError:
            caller.close()
            continue
        called.settimeout(None)
        for ends in ((caller, called), (called, caller)):
            threading.Thread(target=pump, args=(*ends, Path(told)), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1:])
