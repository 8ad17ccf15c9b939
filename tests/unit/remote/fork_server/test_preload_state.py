"""Which numbers depend on a process: a package that keeps one of them may be imported before a fork."""

from __future__ import annotations

import os
from pathlib import Path

from clusterddp.remote.fork_server.preload_state import ProcessNumbers

# Debian's Python 3.11.2 is no position-independent executable: its heap is below 4 GiB.
LOW_HEAP = b"""\
00400000-0041f000 r--p 00000000 fe:00 260811                             /usr/bin/python3.11
00a85000-00aca000 rw-p 00000000 00:00 0
07a39000-07add000 rw-p 00000000 00:00 0                                  [heap]
7f58ec994000-7f58ecbfa000 rw-p 00000000 00:00 0
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
""".splitlines(keepends=True)


def test_the_addresses_of_objects_in_a_low_heap_are_of_the_process_and_other_small_numbers_are_not() -> None:
    numbers = ProcessNumbers(LOW_HEAP)
    assert [one for one in (0x7A39000, 0x7A39010, 0x7ADCFF0, 0x7F58EC994001) if one not in numbers] == []
    beside = (0x7A38FF0, 0x7ADD000, 0x7F58ECBFA000, 0xFFFFFFFFFF600000)
    unaligned, program, unnamed = 0x7A39001, 0x400010, 0xA85010
    assert [one for one in (*beside, unaligned, program, unnamed, 0, -1, 1 << 400) if one in numbers] == []


def test_this_process_has_its_pid_and_its_objects() -> None:
    kept = [type(f"Class{number}", (), {}) for number in range(100)]
    with Path("/proc/self/maps").open("rb") as stream:
        numbers = ProcessNumbers(stream)
    assert os.getpid() in numbers
    assert [one for one in kept if id(one) not in numbers] == []
