"""Stacks as hosts tell them: read, named by the user's own frame, grouped."""

from __future__ import annotations

import json
from typing import Any

from clusterddp.remote.shared.processes.worker_stacks import group_stacks, parse_stacks

DUMP = """Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/home/u/work/load.py", line 7 in fetch

Current thread 0x00007f02 [python] (most recent call first):
  File "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/u/work/train.py", line 81 in step
  File "/home/u/work/train.py", line ??? in <module>
"""


def told(rank: int, text: str = DUMP, *, source: str = "faulthandler", **more: Any) -> dict[str, Any]:
    plain = {"rank": rank, "local_rank": rank % 2, "start": 0, "pid": 100 + rank, "state": "S", "wchan": "0", "why": ""}
    return {**plain, "source": source, "text": text, **more}


def test_the_main_thread_is_the_last_and_its_calls_stand_as_in_a_traceback() -> None:
    (stack,) = parse_stacks("gpu00", [told(3)])
    assert [str(frame) for frame in stack.frames] == [
        "train.py:0 in <module>",
        "train.py:81 in step",
        "distributed_c10d.py:3252 in all_reduce",
    ]
    assert [[frame.function for frame in thread] for thread in stack.threads] == [["fetch", "wait"]]
    assert stack.place == "train.py:81 in step"


def test_a_thread_with_the_name_that_python_gives_is_a_thread() -> None:
    """Python 3.14 prints names, and ``threading`` makes them of the function: Thread-1 (fetch)."""
    named = DUMP.replace("0x00007f01", "0x00007f01 [Thread-1 (fetch]")
    first = DUMP.replace("0x00007f01", "0x00007f00").partition("\n\n")[0]
    (stack,) = parse_stacks("gpu00", [told(3, f"{first}\n\n{named}")])
    assert [[frame.function for frame in thread] for thread in stack.threads] == [["fetch", "wait"]] * 2


def test_a_stack_without_the_users_own_code_is_named_by_its_innermost_call() -> None:
    text = 'Current thread 0x1 (most recent call first):\n  File "/usr/lib/python3.11/runpy.py", line 9 in run\n'
    (stack,) = parse_stacks("gpu00", [told(0, text)])
    assert stack.place == "runpy.py:9 in run"


def test_of_two_dumps_the_first_is_taken() -> None:
    other = DUMP.replace("line 81 in step", "line 90 in later")
    (stack,) = parse_stacks("gpu00", [told(0, DUMP + other)])
    assert (stack.place, len(stack.threads)) == ("train.py:81 in step", 1)


def test_py_spys_threads_are_put_in_the_same_order() -> None:
    def frames(*names: str) -> list[dict[str, Any]]:
        return [{"name": name, "filename": "/home/u/work/train.py", "line": 5} for name in names]

    spied = [
        {"pid": 100, "os_thread_id": 100, "frames": frames("step", "<module>")},
        {"pid": 100, "os_thread_id": 105, "frames": frames("fetch")},
    ]
    (stack,) = parse_stacks("gpu00", [told(0, json.dumps(spied), source="py-spy")])
    assert [frame.function for frame in stack.frames] == ["<module>", "step"]
    assert [[frame.function for frame in thread] for thread in stack.threads] == [["fetch"]]


def test_what_a_broken_host_tells_is_no_stack() -> None:
    for text in ("{", "[" * 100_000):
        (stack,) = parse_stacks("gpu00", [told(0, text, source="py-spy")])
        assert (stack.frames, stack.place) == ((), "no Python frame; sleeping")


def test_equal_stacks_stand_together_the_largest_group_first() -> None:
    elsewhere = DUMP.replace("line 81 in step", "line 95 in validate")
    silent = {"text": "", "source": "", "why": "it does not answer", "state": "D", "wchan": "nfs_wait"}
    stacks = parse_stacks("gpu00", [told(7, elsewhere), *(told(rank) for rank in range(6))]) + parse_stacks(
        "gpu01", [told(6), told(8, **silent)]
    )
    assert [str(group) for group in group_stacks(stacks)] == [
        "ranks 0-6: train.py:81 in step",
        "rank 7 (gpu00:1): train.py:95 in validate",
        "rank 8 (gpu01:0): it does not answer; in uninterruptible sleep in nfs_wait",
    ]


def test_json_holds_every_frame() -> None:
    value = parse_stacks("gpu00", [told(0)])[0].to_json()
    assert value["frames"][1] == {"file": "/home/u/work/train.py", "line": 81, "function": "step"}
    assert json.loads(json.dumps(value)) == value
