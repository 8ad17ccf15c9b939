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
MAX_SECONDS_PER_SIZE = 3.0  # for all rounds of one size of all-reduce
MIN_ROUNDS = 3  # rounds, however long they take
WORK_SECONDS = 0.02  # of work between two barriers
BLOCKS, BARRIERS = 7, 10  # barriers per block: enough that one delay hardly matters
CPU_ROWS, GPU_ROWS = 512, 8192  # rows of matrices on CPUs and GPUs


class BenchWorker:
    """This rank's part of all measurements."""

    def __init__(self, torch: Any, dist: Any, backend: str) -> None:
        self.torch, self.dist = torch, dist
        self.cuda = backend == "nccl"
        self.device = "cuda" if self.cuda else "cpu"
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def print_result(self, what: str, **fields: Any) -> None:
        """Print one result as a line of JSON."""
        sys.stdout.write(json.dumps(dict(fields, what=what)) + "\n")
        sys.stdout.flush()

    def measure(self, work: Callable[[], Any], count: int) -> List[int]:
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
        return [int(one.elapsed_time(other) * 1e6) for one, other in zip(events[:-1], events[1:])]

    def maximum_of(self, number: int) -> int:
        """Return the maximum of a number over all ranks (all-reduce)."""
        tensor = self.torch.tensor([number], dtype=self.torch.int64, device=self.device)
        self.dist.all_reduce(tensor, op=self.dist.ReduceOp.MAX)
        return int(tensor)

    def gemm(self) -> None:
        """Repeat one matrix product: measure its time, and check that the result is bit-identical each time."""
        torch = self.torch
        size, kind = (GPU_ROWS, torch.bfloat16) if self.cuda else (CPU_ROWS, torch.float32)
        # Multiples of 1/128 up to 1: bit-identical on every host, and exact in every type.
        flat = torch.arange(size * size, dtype=torch.int64, device=self.device)
        left, right = (((flat * step) % 257 - 128).to(torch.float32).div(128).to(kind) for step in (7919, 104729))
        left, right = left.view(size, size), right.view(size, size)
        first = left @ right
        wrong = 0
        self.measure(lambda: left @ right, WARM_UPS)
        times = self.measure(lambda: left @ right, 5 * ROUNDS if self.cuda else ROUNDS)
        for _ in range(ROUNDS):  # an intermittent GPU fault shows only in many repetitions
            wrong += int((left @ right != first).sum())
        name = torch.cuda.get_device_name() if self.cuda else ""
        self.print_result(
            "gemm", rank=self.rank, device=name, type=str(kind).replace("torch.", ""), size=size,
            ns=_median(times), p95_ns=_percentile_95(times), wrong=wrong,
            sum=str(first.double().sum().item()),
        )  # fmt: skip

    def allreduce(self, most: int) -> None:
        """Measure all-reduces of float32 in growing sizes, until one would take too long."""
        torch, dist = self.torch, self.dist
        per_byte = 0.0
        for size in [one for one in SIZES if one <= most]:
            if self.cuda and self.maximum_of(int(torch.cuda.mem_get_info()[0] < 4 * size)):
                break
            if per_byte * size * (MIN_ROUNDS + 1) > MAX_SECONDS_PER_SIZE * 1e9:
                break
            tensor = torch.zeros(size // 4, dtype=torch.float32, device=self.device)
            once = self.maximum_of(min(self.measure(lambda: dist.all_reduce(tensor), 2)))  # noqa: B023 - called here
            rounds = max(MIN_ROUNDS, min(ROUNDS, int(MAX_SECONDS_PER_SIZE * 1e9 / 2 / max(1, once))))
            self.measure(lambda: dist.all_reduce(tensor), min(WARM_UPS, rounds - MIN_ROUNDS))  # noqa: B023
            times = torch.tensor(self.measure(lambda: dist.all_reduce(tensor), rounds), device=self.device)  # noqa: B023
            dist.all_reduce(times, op=dist.ReduceOp.MAX)  # an all-reduce has ended when the last rank has the result
            taken = times.tolist()
            wrong = self.count_wrong(tensor)
            if self.rank == 0:
                self.print_result(
                    "allreduce", size=size, count=size // 4, type="float", redop="sum", world=self.world,
                    ns=_median(taken), p95_ns=_percentile_95(taken), rounds=rounds, wrong=wrong,
                )  # fmt: skip
            per_byte = once / size if size >= 1 << 20 else 0.0

    def count_wrong(self, tensor: Any) -> int:
        """Check one more all-reduce; return the number of wrong elements, summed over all ranks."""
        torch = self.torch
        pattern = torch.arange(tensor.numel(), dtype=torch.float32, device=self.device).remainder_(7)
        tensor.copy_(pattern).add_(self.rank)
        self.dist.all_reduce(tensor)
        pattern.mul_(self.world).add_(self.world * (self.world - 1) / 2)
        wrong = (tensor != pattern).sum().to(torch.int64).reshape(1)
        self.dist.all_reduce(wrong)
        return int(wrong)

    def lateness(self) -> None:
        """Repeat equal work and a barrier; report how long this rank worked and how long it waited."""
        torch = self.torch
        threads = torch.get_num_threads()
        if not self.cuda:
            torch.set_num_threads(1)  # more threads would compete for the cores of a small host
        size, kind = (4096, torch.bfloat16) if self.cuda else (192, torch.float32)
        matrix = torch.ones(size, size, dtype=kind, device=self.device)
        flag = torch.zeros(1, device=self.device)
        once = _median(self.measure(lambda: matrix @ matrix, 50))
        count = self.maximum_of(max(1, int(WORK_SECONDS * 1e9 / max(1, once)))) if self.world > 1 else 1
        worked, waited = [], []
        self.wait_for_all(flag)
        for _ in range(BLOCKS):
            busy = idle = 0
            for _ in range(BARRIERS):
                began = time.perf_counter_ns()
                for _ in range(count):
                    matrix @ matrix
                if self.cuda:
                    torch.cuda.synchronize()
                done = time.perf_counter_ns()
                self.wait_for_all(flag)
                busy, idle = busy + done - began, idle + time.perf_counter_ns() - done
            worked.append(busy)
            waited.append(idle)
        torch.set_num_threads(threads)
        self.print_result("late", rank=self.rank, worked=worked, waited=waited)

    def wait_for_all(self, flag: Any) -> None:
        """Wait for all ranks, by an all-reduce as a barrier."""
        self.dist.all_reduce(flag)
        if self.cuda:
            self.torch.cuda.synchronize()


def _median(times: List[int]) -> int:
    return sorted(times)[len(times) // 2]


def _percentile_95(times: List[int]) -> int:
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
        "late": worker.lateness,
    }
    for part in parts:
        dist.barrier()
        works[part]()
    dist.barrier()
    worker.print_result("end", rank=worker.rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
