"""Bytes from elsewhere, changed at random: a decoder gives what it must or raises its own error, nothing else.

Each input follows from its number, so what fails is found again by its number. ``make fuzz COUNT=1000000`` takes more.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import os
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import HelperError, HostKeyError
from clusterddp.hosts.ssh.config import _lines
from clusterddp.hosts.ssh.known_hosts import KnownHosts, PresentedKey, _parse
from clusterddp.logs.incoming import check_frames
from clusterddp.remote.probes import nvidia_smi_xml
from clusterddp.remote.processes import trace_decoder
from clusterddp.remote.shared.bundle.archive import Member, pack, unpack
from clusterddp.remote.shared.cleanup.cleanup_records import (
    ActiveRun,
    CleanAnswer,
    HoldingsAnswer,
    SizedFolder,
    UnusedWorkdir,
    WorkdirHeld,
)
from clusterddp.remote.shared.environment.environment_records import EnvironmentReport
from clusterddp.remote.shared.processes.process_records import OrphanedRun
from clusterddp.remote.shared.processes.worker_stacks import parse_stacks
from clusterddp.remote.shared.run.spool_records import LeftProcess
from clusterddp.remote.shared.schema.fields import DamagedError
from clusterddp.remote.shared.schema.record import read_record, to_fields
from clusterddp.remote.shared.slurm.login_records import CommandAnswer
from clusterddp.remote.shared.verdict.status_reply import read_nodes
from clusterddp.remote.shared.wire.frames import Decoder, Frame, ProtocolError, encode, parse, parse_json
from clusterddp.remote.system import nvidia_smi
from clusterddp.runs.stopped_ranks import read_message
from clusterddp.runs.view.run_view import run_views
from tests.unit.logs.test_incoming import END, HELLO, LINES
from tests.unit.remote.processes.traces_made import COUNTERS, NOW, entry, trace
from tests.unit.remote.shared.verdict.test_status_reply import node
from tests.unit.runs.top_made import pace, usage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
COUNT = int(os.environ.get("CLUSTERDDP_FUZZ", "300"))
RECORDED = sorted(path for path in (Path(__file__).parents[1] / "data" / "nvidia-smi").rglob("*") if path.is_file())
GREEDY = (
    b"[" * 99,
    b'{"a":',
    b"9" * 40,
    b"NaN",
    b"1e999",
    b"-1",
    b"\xff\xfe",
    b"\0",
    b"\x1b[2J",
    b"/../",
    b"\\udc80",
    b'"',
)
KNOWN = (
    b"[gpu01]:33022,gpu* ssh-ed25519 AAAA x\n@revoked * ssh-rsa AAAB\n|1|c2FsdA==|aGFzaA== ssh-rsa AAAC\n!a,b ecdsa A\n"
)
CONFIG = b'Host gpu* !x\n  HostName 10.0.0.1\nMatch exec true\n ProxyJump=a,b\nInclude nothing/* "x y"\nPort 22\n'


def frames(data: bytes) -> None:
    for frame in Decoder().feed(data):
        parse(encode(frame.header)[4:])


def log_frames(data: bytes) -> None:
    head, _, body = data.partition(b"\n")

    def told() -> Generator[Frame, None, None]:
        yield Frame({**HELLO}, b"")
        yield parse(head + b"\n" + body)

    list(check_frames(told(), "gpu01", HELLO["run"], 1))  # type: ignore[arg-type]


def replies(data: bytes) -> None:
    for view in run_views(read_nodes(parse_json(data), "gpu00", "")):
        json.dumps(view.to_json())


def answers(data: bytes) -> None:
    told = parse_json(data)
    for answer in ANSWERS:
        with contextlib.suppress(DamagedError):
            read_record(type(answer), told, "answer")


def stacks(data: bytes) -> None:
    for stack in parse_stacks("gpu00", parse_json(data)):
        json.dumps(stack.to_json())


def pdb_lines(data: bytes) -> None:
    message = read_message(data)
    assert "\x1b]" not in message.text + (message.prompt or "")


def groups(data: bytes) -> None:
    read = trace_decoder.read_groups(data)
    trace_decoder.mark_mismatches([read, TRACED])
    for group in trace_decoder.cut_groups(read, NOW, 3000):
        json.dumps(to_fields(group)).encode()


def waits(data: bytes) -> None:
    "".join(trace_decoder.read_waits(data)).encode()


def archives(data: bytes) -> None:
    for packed in (data, gzip.compress(data, 1)):
        with contextlib.suppress(DamagedError):
            unpack(packed)


def known_hosts(data: bytes) -> None:
    known = _parse(Path("k"), data.decode(errors="replace"))
    for key in known:
        key.matches("[gpu01]:33022")
    with tempfile.NamedTemporaryFile(dir=MEMORY) as file:
        file.write(data)
        file.flush()
        shown = PresentedKey(host="gpu01", names=("[gpu01]:33022", "gpu01"), type="ssh-ed25519", blob="AAAA")
        KnownHosts().check(shown, [Path(file.name)])


def ssh_config(data: bytes) -> None:
    # An Include finds nothing: in a folder of real files a changed pattern could take them all, again and again.
    path = Path(_folder().name) / "config"
    path.write_bytes(data.replace(b"/", b"").replace(b"*", b"?"))
    list(_lines(path, path.with_name("none")))


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """One for all inputs, in memory: a disk takes a hundred times as long as to decode."""
    return tempfile.TemporaryDirectory(dir=MEMORY)


def smi(data: bytes) -> None:
    text = data.decode(errors="replace")
    nvidia_smi.parse_gpus(text)
    nvidia_smi.parse_apps(text)
    nvidia_smi_xml.parse_links(text)
    nvidia_smi_xml.parse_cards(text)
    nvidia_smi_xml.parse_usage(text)


ARCHIVE = pack([Member("top/README.txt", b"what"), Member("top/hosts/gpu00/why.json", b"{}")], 7)
LOG_LINES = [encode({**LINES})[4:] + b"ab\n", encode({"kind": "end"})[4:] + END]
STACK = {"rank": 0, "local_rank": 0, "start": 0, "pid": 7, "state": "S", "wchan": "0", "why": ""}
SPIED = [{"pid": 7, "os_thread_id": 7, "frames": [{"name": "step", "filename": "/w/train.py", "line": 5}]}]
DUMPED = 'Thread 0x7 (most recent call first):\n  File "/w/train.py", line 1 in step'
STACKS = [
    json.dumps([{**STACK, "source": source, "text": text}]).encode()
    for source, text in (("py-spy", json.dumps(SPIED)), ("faulthandler", DUMPED))
]
TRACES = [trace(*(entry(number) for number in range(1, 4)), entry(1, 0, "barrier", pg_id=7, process_group=["1", "é"]))]
TRACED = trace_decoder.read_groups(TRACES[0].replace(b"all_reduce", b"broadcast"))
ANSWERS = (
    CommandAnswer(status=0, out="17\n", err=""),
    EnvironmentReport(ident="ab", lock="uv.lock", bytes=1, used={"p": 2}, live=("r1",), building=False),
    HoldingsAnswer((SizedFolder("/s", 1),), 1, (ActiveRun("r1", "", ""),), (WorkdirHeld("/w", "x", 1, 2, 3),), ()),
    CleanAnswer(1, 2, 3, 4, kept=("r1",), workdirs=(UnusedWorkdir("/w", 3),), nothing_left=False),
    OrphanedRun(run="r1", host="gpu00", known=True, processes=(LeftProcess(7, 1, "python"),)),
    pace(0).pace,
    usage(1),
)
DECODERS: dict[str, tuple[list[bytes], Callable[[bytes], None], tuple[type[Exception], ...]]] = {
    "frames": ([encode({"id": 1, "kind": "data", "n": 5}, b"body") * 2], frames, (ProtocolError,)),
    "log frames": (LOG_LINES, log_frames, (ProtocolError, HelperError)),
    "replies": ([json.dumps([node()]).encode()], replies, (ValueError,)),
    "answers": ([json.dumps(to_fields(one)).encode() for one in ANSWERS], answers, (ValueError,)),
    "stacks": (STACKS, stacks, (ValueError,)),
    "pdb_lines": ([b'{"out": "text"}', b'{"ask": "(Pdb) "}', b'{"running": true}'], pdb_lines, (ValueError,)),
    "groups": (TRACES, groups, (DamagedError,)),
    "waits": ([json.dumps(COUNTERS).encode()], waits, (DamagedError,)),
    "archives": ([ARCHIVE, gzip.decompress(ARCHIVE)], archives, ()),
    "known_hosts": ([KNOWN], known_hosts, (HostKeyError,)),
    "ssh_config": ([CONFIG], ssh_config, ()),
    "nvidia-smi": ([path.read_bytes() for path in RECORDED], smi, (ValueError,)),
}


def changed(data: bytes, choose: random.Random) -> bytes:
    """The bytes with a few parts left out, repeated, exchanged or put in."""
    found = bytearray(data)
    for _ in range(choose.randint(1, 6)):
        at = choose.randrange(len(found) + 1)
        end = min(len(found), at + choose.randint(0, 20))
        kind = choose.randrange(5)
        if kind == 0:
            del found[at:end]
        elif kind == 1:
            found[at:at] = found[at:end]
        elif kind == 2:
            found[at:end] = choose.randbytes(choose.randint(0, 8))
        elif kind == 3:
            found[at:at] = choose.choice(GREEDY)
        elif at < len(found):
            found[at] ^= 1 << choose.randrange(8)
    return bytes(found)


@pytest.mark.parametrize("name", DECODERS)
def test_whatever_the_bytes_a_decoder_raises_its_own_error_alone(name: str) -> None:
    seeds, decode, own = DECODERS[name]
    for number in range(COUNT):
        choose = random.Random(number)
        data = changed(choose.choice(seeds), choose)
        try:
            decode(data)
        except own:
            continue
        except BaseException as error:  # noqa: BLE001 - told with its input
            pytest.fail(f"{name}, input {number}: {error!r} of {data[:300]!r}")
