"""What an answer of a host costs the operator: 64 MiB of memory and a few seconds of CPU, whatever the host sends."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, replace

import pytest

from clusterddp.hosts.answers import MAX_MEMORY, memory_cost
from clusterddp.remote.shared.wire.frames import MAX_BODY, encode

MIB, SECONDS = 64, 6.0  # 2 s on a free core; a core that is shared with other tests is counted as longer
# An operator of its own, so that its peak is this answer's: prints the error, MiB of memory and seconds of CPU.
OPERATOR = """
import json, re, sys, time
from pathlib import Path
from clusterddp.errors import ClusterddpError
from clusterddp.sync.transfer.fetch import list_host
from tests.integration.hostile_helper import hostile

def kib(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

told = json.loads(sys.stdin.read())
asked, answer = told.pop("asked"), bytes.fromhex(told.pop("answer"))
asking = {
    "facts": lambda host: host.call("facts", timeout=60),
    "tail": lambda host: list(host.stream("tail")),
    "pull": lambda host: list_host(host, "/w", "out"),
}
told = {name: value if isinstance(value, int) else bytes.fromhex(value) for name, value in told.items()}
with hostile(answer, **told) as host:
    Path("/proc/self/clear_refs").write_text("5")
    before, began, said = kib("VmRSS"), time.process_time(), ""
    try:
        asking[asked](host)
    except ClusterddpError as error:
        said = str(error)
    cpu = time.process_time() - began
print(json.dumps([said, (kib("VmHWM") - before) >> 10, round(cpu, 2)]))
"""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What the host sends: first this, then a frame so many times, and a last one; with patience as credit comes."""

    answer: bytes
    times: int
    begin: bytes = b""
    last: bytes = b""
    patience: int = 0
    asked: str = "facts"


def result(body: bytes, times: int, begin: bytes = b"", end: bytes = b"") -> Sent:
    """A result: a body so many times, with something before and behind."""
    return Sent(
        begin=encode({"id": 1, "kind": "data", "result": True}, begin),
        answer=encode({"id": 1, "kind": "data", "result": True}, body),
        times=times,
        last=encode({"id": 1, "kind": "end"}, end),
        patience=8,
    )


def most(unit: bytes) -> Sent:
    """A list of as many of these values as are taken."""
    body = unit * (MAX_BODY // len(unit))
    whole = memory_cost(body * 40) / 40
    return result(body, int((MAX_MEMORY - (1 << 20)) / whole), b"[", b"0]")


def large(unit: bytes, mib: float, begin: bytes = b"", end: bytes = b"", asked: str = "facts") -> Sent:
    """So many MiB of something."""
    body = unit * (MAX_BODY // len(unit))
    return replace(result(body, int(mib * 2**20) // len(body), begin, end), asked=asked)


def listed(unit: bytes) -> Sent:
    """A list for a pull of as many of these files as are read: they are the same ones again and again, and refused."""
    sent = most(unit)
    end = unit[:-1] + b'],"chunks":{},"skipped":[],"others":[],"there":true,"folder":true,"root":"/w","shared":null}'
    begin = encode({"id": 1, "kind": "data", "result": True}, b'{"entries":[')
    return replace(sent, asked="pull", begin=begin, last=encode({"id": 1, "kind": "end"}, end))


FILE = b'["out/sample.png","file",false,1,"' + b"0" * 64 + b'"],'
HEADER = b'{"id":1,"kind":"data","x":[' + b"[]," * 20_000 + b"[]]}\n"
LONG_HEADER = (len(HEADER) + 1).to_bytes(4, "big") + HEADER + b"1"
ONE_BYTE = encode({"id": 1, "kind": "data", "result": True}, b"1")
TAKEN = {
    "lists": most(b"[],"),
    "lists of one": most(b"[1],"),
    "objects": most(b'{"a":{}},'),
    "objects of many fields": most(b'{"a":1,"b":[],"c":{},"d":"efg","f":1.5},'),
    "numbers": most(b"12345678901,"),
    "long numbers": most(b"1234567890.25e17,"),
    "short texts": most(b'"abcdefgh",'),
    "long texts": most(b'"' + b"a" * 20_000 + b'",'),
    "texts of wide letters": most(b'"' + b"a" * 1000 + b'\\ud83d\\ude00",'),
    "halves of letters": most(b'"abc\\ud800\\udc00\\ud800",'),
    "escapes": most(b'"\\n\\n\\n\\n\\u0001\\u0001",'),
    "nested": most(b"[" * 30 + b"]" * 30 + b","),
    "blanks": most(b"1," + b" " * 1000),
}
REFUSED = {
    "250 MiB of lists": large(b"[],", 250, b"[", b"0]"),
    "28 MiB of nothing": large(b" ", 28, b"5"),
    "depth": large(b"[", 0.6),
    "a key again and again": large(b'"a":1,', 1, b"{", b'"a":1}'),
    "no end": large(b"1,", 1, b"["),
    "frames of one byte": Sent(answer=ONE_BYTE, times=2_000_000),
    "patient frames of one byte": Sent(answer=ONE_BYTE, times=2_000_000, patience=1000),
    "files of a pull": listed(FILE),
    "links of a pull": listed(b'["a","link",false,0,"b"],'),
    "a pull of a path of a thousand folders": replace(
        listed(b'["' + b"a/" * 20_000 + b'b","file",false,1,"' + b"0" * 64 + b'"],'), times=1
    ),
    "a pull of more files": large(
        b'["out/sample.png","file",false,1,"' + b"0" * 64 + b'"],', 25, b"[", b"0]", asked="pull"
    ),
    "headers": Sent(answer=LONG_HEADER, times=4000, patience=8),
    "headers of a stream": Sent(answer=LONG_HEADER, times=4000, asked="tail"),
    "grants": Sent(answer=encode({"id": 1, "kind": "credit", "n": 1}), times=1_000_000),
    "grants of nothing": Sent(answer=encode({"id": 1, "kind": "credit", "n": 0}), times=1_000_000),
    "frames of no request": Sent(answer=encode({"id": 9, "kind": "data"}, b"x" * 9), times=5_000_000),
    "answers to no ping": Sent(answer=encode({"id": 0, "kind": "end", "time_ns": 1}), times=5_000_000),
}


def told_of(sent: Sent) -> str:
    """What an operator says who asks such a host, when it has cost no more than it may."""
    given: dict[str, object] = {
        name: value.hex() if isinstance(value, bytes) else value for name, value in asdict(sent).items()
    }
    argv = [sys.executable, "-c", OPERATOR]
    done = subprocess.run(argv, input=json.dumps(given), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said, mib, seconds = json.loads(done.stdout)
    print(f"{mib} MiB, {seconds} s: {said}")
    assert mib <= MIB
    assert seconds <= SECONDS
    return str(said)


@pytest.mark.parametrize("name", TAKEN)
def test_an_answer_that_is_taken_costs_no_more_than_it_may(name: str) -> None:
    assert told_of(TAKEN[name]) == ""


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_cost_more_is_an_error_of_its_host_and_costs_no_more(name: str) -> None:
    assert told_of(REFUSED[name]).startswith("bad: ")
