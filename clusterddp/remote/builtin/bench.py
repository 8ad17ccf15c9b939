"""The worker of ``bench``: matrix products, all-reduces of growing size, lateness; one JSON line per result.

A run starts it in place of a script. Its only argument is a JSON object: ``backend``, ``timeout`` (seconds for each
step), ``parts`` (of ``gemm``, ``allreduce``, ``late``), ``most`` (bytes of the largest all-reduce). Times are whole ns
of one host's monotonic clock; clocks of different hosts are never compared.
"""

import json
import os
import sys
import time
from typing import Any, Callable, Dict, List

WARM_UPS, ROUNDS = 5, 20
SIZES = (8, 1 << 16, 1 << 20, 1 << 24, 1 << 26, 1 << 28, 1 << 30)  # bytes
BUDGET = 3.0  # seconds for all rounds of one size
FEWEST = 3  # rounds, however long they take
WORK = 0.02  # seconds of work between two barriers
BLOCKS, MEETINGS = 7, 10  # barriers per block: enough that one hiccup hardly matters
SMALL, LARGE = 512, 8192  # rows of matrices on CPUs and GPUs


class BenchWorker:
    """Runs this rank's part of all measurements."""

    def __init__(self, torch: Any, dist: Any, backend: str) -> None:
        self.torch, self.dist = torch, dist
        self.cuda = backend == "nccl"
        self.device = "cuda" if self.cuda else "cpu"
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def tell(self, what: str, **fields: Any) -> None:
        """Print one result as a line of JSON."""
        sys.stdout.write(json.dumps(dict(fields, what=what)) + "\n")
        sys.stdout.flush()

    def timed(self, work: Callable[[], Any], count: int) -> List[int]:
        """Time ``count`` calls in ns, by the GPU's clock where there is one."""
        if not self.cuda:
            taken = []
            for _ in range(count):
                began = time.perf_counter_ns()
                work()
                taken.append(time.perf_counter_ns() - began)
            return taken
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            work()
            event.record()
        self.torch.cuda.synchronize()
        return [int(one.elapsed_time(other) * 1e6) for one, other in zip(events[:-1], events[1:])]  # noqa: RUF007 - Python 3.8

    def agreed(self, number: int) -> int:
        """Return the maximum of a number over all ranks (all-reduce)."""
        held = self.torch.tensor([number], dtype=self.torch.int64, device=self.device)
        self.dist.all_reduce(held, op=self.dist.ReduceOp.MAX)
        return int(held)

    def gemm(self) -> None:
        """Repeat one matrix product: measure its time, and check that the result is bit-identical each time."""
        torch = self.torch
        size, kind = (LARGE, torch.bfloat16) if self.cuda else (SMALL, torch.float32)
        # Multiples of 1/128 up to 1: bit-identical on every host, and exact in every type.
        flat = torch.arange(size * size, dtype=torch.int64, device=self.device)
        one, other = (((flat * step) % 257 - 128).to(torch.float32).div(128).to(kind) for step in (7919, 104729))
        one, other = one.view(size, size), other.view(size, size)
        first = one @ other
        wrong = 0
        self.timed(lambda: one @ other, WARM_UPS)
        times = self.timed(lambda: one @ other, 5 * ROUNDS if self.cuda else ROUNDS)
        for _ in range(ROUNDS):  # an intermittent GPU fault shows only in many repetitions
            wrong += int((one @ other != first).sum())
        name = torch.cuda.get_device_name() if self.cuda else ""
        self.tell(
            "gemm", rank=self.rank, device=name, type=str(kind).replace("torch.", ""), size=size,
            ns=_middle(times), p95_ns=_high(times), wrong=wrong,
            sum=str(first.double().sum().item()),
        )  # fmt: skip

    def allreduce(self, most: int) -> None:
        """Measure all-reduces of float32 in growing sizes, until one would take too long."""
        torch, dist = self.torch, self.dist
        per_byte = 0.0
        for size in [one for one in SIZES if one <= most]:
            if self.cuda and self.agreed(int(torch.cuda.mem_get_info()[0] < 4 * size)):
                break
            if per_byte * size * (FEWEST + 1) > BUDGET * 1e9:
                break
            held = torch.zeros(size // 4, dtype=torch.float32, device=self.device)
            once = self.agreed(min(self.timed(lambda: dist.all_reduce(held), 2)))  # noqa: B023 - called here
            rounds = max(FEWEST, min(ROUNDS, int(BUDGET * 1e9 / 2 / max(1, once))))
            self.timed(lambda: dist.all_reduce(held), min(WARM_UPS, rounds - FEWEST))  # noqa: B023
            times = torch.tensor(self.timed(lambda: dist.all_reduce(held), rounds), device=self.device)  # noqa: B023
            dist.all_reduce(times, op=dist.ReduceOp.MAX)  # an all-reduce has ended when the last rank has the result
            taken = times.tolist()
            wrong = self.checked(held)
            if self.rank == 0:
                self.tell(
                    "allreduce", size=size, count=size // 4, type="float", redop="sum", world=self.world,
                    ns=_middle(taken), p95_ns=_high(taken), rounds=rounds, wrong=wrong,
                )  # fmt: skip
            per_byte = once / size if size >= 1 << 20 else 0.0

    def checked(self, held: Any) -> int:
        """Check one more all-reduce; return the number of wrong elements, summed over all ranks."""
        torch = self.torch
        pattern = torch.arange(held.numel(), dtype=torch.float32, device=self.device).remainder_(7)
        held.copy_(pattern).add_(self.rank)
        self.dist.all_reduce(held)
        pattern.mul_(self.world).add_(self.world * (self.world - 1) / 2)
        wrong = (held != pattern).sum().to(torch.int64).reshape(1)
        self.dist.all_reduce(wrong)
        return int(wrong)

    def late(self) -> None:
        """Repeat equal work and a barrier; report how long this rank worked and how long it waited."""
        torch = self.torch
        threads = torch.get_num_threads()
        if not self.cuda:
            torch.set_num_threads(1)  # more threads would compete for the cores of a small host
        size, kind = (4096, torch.bfloat16) if self.cuda else (192, torch.float32)
        one = torch.ones(size, size, dtype=kind, device=self.device)
        flag = torch.zeros(1, device=self.device)
        once = _middle(self.timed(lambda: one @ one, 50))
        count = self.agreed(max(1, int(WORK * 1e9 / max(1, once)))) if self.world > 1 else 1
        worked, waited = [], []
        self.meet(flag)
        for _ in range(BLOCKS):
            busy = idle = 0
            for _ in range(MEETINGS):
                began = time.perf_counter_ns()
                for _ in range(count):
                    one @ one
                if self.cuda:
                    torch.cuda.synchronize()
                came = time.perf_counter_ns()
                self.meet(flag)
                busy, idle = busy + came - began, idle + time.perf_counter_ns() - came
            worked.append(busy)
            waited.append(idle)
        torch.set_num_threads(threads)
        self.tell("late", rank=self.rank, worked=worked, waited=waited)

    def meet(self, flag: Any) -> None:
        """Wait for all ranks, by an all-reduce as a barrier."""
        self.dist.all_reduce(flag)
        if self.cuda:
            self.torch.cuda.synchronize()


def _middle(times: List[int]) -> int:
    return sorted(times)[len(times) // 2]


def _high(times: List[int]) -> int:
    return sorted(times)[min(len(times) - 1, int(len(times) * 0.95))]


def main(*, backend: str, timeout: float, parts: List[str], most: int) -> None:
    """Run all parts; an exception ends the run and appears in its verdict."""
    print(json.dumps({"what": "rendezvous"}), flush=True)  # torchrun starts workers when all nodes are there
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    worker = BenchWorker(torch, dist, backend)
    works: Dict[str, Callable[[], None]] = {
        "gemm": worker.gemm,
        "allreduce": lambda: worker.allreduce(most),
        "late": worker.late,
    }
    for part in parts:
        dist.barrier()
        works[part]()
    dist.barrier()
    worker.tell("end", rank=worker.rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
