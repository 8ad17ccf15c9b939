"""What a worker's server says, made up: traces as torch's flight recorder writes them, and hypothesis strategies."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from clusterddp.remote.shared.collectives.trace_records import CREATED, DONE, STARTED
from tests.unit.json_values import VALUES

NOW = 1_795_462_968_000_000_000
COUNTERS = {
    "pytorch.wait_counter.TCPStore__wait": {"active_count": 1, "max_time_us": 9, "total_calls": 1, "total_time_us": 9},
    "pytorch.wait_counter.TCPStore__get": {"active_count": 0, "max_time_us": 9, "total_calls": 1, "total_time_us": 9},
}
# What torch 2.13 answered about a worker that waits for one key after the other, each set after 0.1 s (two looks, 0.4 s
# apart), and then for one that nobody sets.
STEPS = (
    (
        b'{"pytorch.wait_counter.TCPStore__init":'
        b'{"active_count":0,"max_time_us":43227,"total_calls":2,"total_time_us":64844},'
        b'"pytorch.wait_counter.TCPStore__set":{"active_count":0,"max_time_us":161,"total_calls":2,"total_time_us":275},'
        b'"pytorch.wait_counter.TCPStore__wait":'
        b'{"active_count":1,"max_time_us":100830,"total_calls":3,"total_time_us":201041},'
        b'"pytorch.wait_counter.TCPStore__waitForWorkers":'
        b'{"active_count":0,"max_time_us":58,"total_calls":2,"total_time_us":84}}'
    ),
    (
        b'{"pytorch.wait_counter.TCPStore__init":'
        b'{"active_count":0,"max_time_us":43227,"total_calls":2,"total_time_us":64844},'
        b'"pytorch.wait_counter.TCPStore__set":{"active_count":0,"max_time_us":161,"total_calls":6,"total_time_us":543},'
        b'"pytorch.wait_counter.TCPStore__wait":'
        b'{"active_count":1,"max_time_us":105107,"total_calls":7,"total_time_us":607827},'
        b'"pytorch.wait_counter.TCPStore__waitForWorkers":'
        b'{"active_count":0,"max_time_us":58,"total_calls":2,"total_time_us":84}}'
    ),
)
ONE_WAIT = 2 * (
    (
        b'{"pytorch.wait_counter.TCPStore__init":'
        b'{"active_count":0,"max_time_us":43227,"total_calls":2,"total_time_us":64844},'
        b'"pytorch.wait_counter.TCPStore__set":{"active_count":0,"max_time_us":161,"total_calls":20,"total_time_us":1324},'
        b'"pytorch.wait_counter.TCPStore__wait":'
        b'{"active_count":1,"max_time_us":105107,"total_calls":21,"total_time_us":2020590},'
        b'"pytorch.wait_counter.TCPStore__waitForWorkers":'
        b'{"active_count":0,"max_time_us":58,"total_calls":2,"total_time_us":84}}'
    ),
)


def entry(sequence: int, progress: int = DONE, name: str = "all_reduce", **changes: Any) -> dict[str, Any]:
    """One entry as torch 2.13 writes it on gloo."""
    return {
        "collective_seq_id": sequence,
        "input_dtypes": ["Float"],
        "input_sizes": [[4]],
        "is_p2p": False,
        "op_id": sequence,
        "output_dtypes": ["Float"],
        "output_sizes": [[4]],
        "p2p_seq_id": 0,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "profiling_name": f"gloo:{name}",
        "record_id": sequence - 1,
        "retired": progress == DONE,
        "state": {CREATED: "scheduled", STARTED: "started", DONE: "scheduled"}[progress],
        "thread_id": "140310890343296",
        "thread_name": "python",
        "time_created_ns": NOW - 1_000_000 + sequence % 1000,
        "time_discovered_completed_ns": 0,
        "time_discovered_started_ns": 0,
        "timeout_ms": 1800000,
        **changes,
    }


def trace(*entries: dict[str, Any]) -> bytes:
    """A whole trace."""
    return json.dumps(
        {
            "comm_lib_version": "",
            "entries": entries,
            "nccl_comm_state": {},
            "pg_config": {"": {"desc": "", "name": "", "ranks": "[0]"}},
            "pg_status": {"0": {"last_completed_collective": "2100"}},
            "version": "2.10",
        },
        separators=(",", ":"),
    ).encode()


# Texts that are long, of characters that JSON writes in twelve bytes, or that a terminal would obey.
TEXTS = st.text(max_size=200) | st.sampled_from(
    ["\x1b[2J", "a\nb", "\ud800", "\U0001f600" * 99, "\u202e", "", "x" * 5000]
)
NUMBERS = st.integers(0, 300) | st.integers(0, (1 << 63) - 1)
ENTRIES = st.builds(
    lambda sequence, progress, changes: entry(sequence, progress, **changes),
    NUMBERS,
    st.sampled_from([CREATED, STARTED, DONE]),
    st.fixed_dictionaries(
        {},
        optional={
            "process_group": st.lists(TEXTS, max_size=3),
            "profiling_name": TEXTS,
            "pg_id": st.integers(0, 20) | NUMBERS,
            "input_sizes": st.lists(st.lists(NUMBERS, max_size=3), max_size=5) | st.none(),
            "input_dtypes": st.lists(TEXTS, max_size=5) | st.dictionaries(TEXTS, TEXTS, max_size=2),
            "time_created_ns": NUMBERS,
            "is_p2p": st.booleans(),
        },
    ),
)
DAMAGED = st.builds(lambda one, name, value: {**one, name: value}, ENTRIES, st.sampled_from([*entry(1)]), VALUES)
