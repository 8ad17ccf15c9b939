"""Failures provoked for real, to record what they say: `python -m tests.integration.provoked [NAME…]`.

Writes tests/data/known/NAME.txt, which the table of known messages (clusterddp/known/) is tested against. What needs
a GPU is not here: those files were copied from where the message is documented, and say so. Some want root, some gcc.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data" / "known"
LONGEST = 4000  # characters: what a host sends of a worker's stderr

GLOO = """
import os, torch, torch.distributed as dist, datetime
import torch.multiprocessing as mp
def start(rank, world=2, **more):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29871", RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", **more)
"""
PAIR = f"""{GLOO}
def main(rank):
    start(rank, timeout=datetime.timedelta(seconds=3))
    work(rank)
"""
PAIR_END = """
if __name__ == "__main__":
    workers = [mp.Process(target=main, args=(rank,)) for rank in range(2)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    raise SystemExit(1)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One failure: a Python program, run by ``prefix``."""

    code: str
    prefix: tuple[str, ...] = ()

    def said(self) -> str:
        """What it says on stderr, without names of this machine."""
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "train.py")
            script.write_text(textwrap.dedent(self.code))
            done = subprocess.run(
                [*self.prefix, sys.executable, str(script)],
                check=False,
                capture_output=True,
                text=True,
                cwd=folder,
                timeout=120,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"},
            )
        assert done.returncode, "it did not fail"
        text = _without_places(done.stderr, folder)
        return text if len(text) < LONGEST else text[-LONGEST:].partition("\n")[2]


def _without_places(text: str, folder: str) -> str:
    import torch  # noqa: PLC0415 - heavy, and not needed to read the table

    library = str(Path(torch.__file__).parents[1])
    text = text.replace(folder, "/home/u/work").replace(library, "/opt/train/lib/python3.11/site-packages")
    text = text.replace(sys.base_prefix, "/usr")
    return text.replace(str(Path(sys.executable).parent), "/opt/train/bin").replace(os.uname().nodename, "gpu01")


def _pair(work: str) -> str:
    return PAIR + "def work(rank):\n" + textwrap.indent(textwrap.dedent(work), "    ") + PAIR_END


def _limited(name: str, value: str) -> tuple[str, ...]:
    return ("prlimit", f"--{name}={value}")


def _mounted(size: str, place: str) -> tuple[str, ...]:
    line = f'mkdir -p {place} && mount -t tmpfs -o size={size} tmpfs {place} && exec "$@"'
    return ("unshare", "--mount", "sh", "-c", line, "sh")


AS_PLAIN_USER = (
    "sh", "-c", 'chmod 755 . && chmod 644 train.py && exec "$@"', "sh",
    "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all",
)  # fmt: skip
BUILD = """
import pathlib, subprocess, sys, sysconfig
def build(name, source, *more):
    pathlib.Path(name + ".c").write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", name + ".so", name + ".c", *more], check=True)
"""

CASES = {
    "port-in-use": Case(
        code="""
        import socket, torch.distributed as dist
        taken = socket.create_server(("", 29870))
        dist.TCPStore("127.0.0.1", 29870, 2, True)
        """
    ),
    "port-in-use-python": Case(
        code="""
        import socket
        taken = socket.create_server(("127.0.0.1", 29870))
        socket.create_server(("127.0.0.1", 29870))
        """
    ),
    "gloo-interface": Case(
        code=GLOO + "os.environ['GLOO_SOCKET_IFNAME'] = 'ib9'\nstart(0, 1)\ndist.all_reduce(torch.ones(1))"
    ),
    "rendezvous-refused-client": Case(
        code="""
        import datetime, torch.distributed as dist
        dist.TCPStore("127.0.0.1", 29869, 2, False, timeout=datetime.timedelta(seconds=1))
        """
    ),
    "workers-missing": Case(
        code="""
        import datetime, torch.distributed as dist
        dist.TCPStore("127.0.0.1", 29868, 2, True, timeout=datetime.timedelta(seconds=1))
        """
    ),
    "collective-timeout": Case(
        code=_pair("if rank: import threading; threading.Event().wait(8)\nelse: dist.all_reduce(torch.ones(1))")
    ),
    "peer-gone": Case(code=_pair("if rank: os._exit(0)\ndist.all_reduce(torch.ones(1))")),
    "collective-timeout-sizes": Case(code=_pair("dist.all_reduce(torch.ones(1 + rank))")),
    "collective-mismatch": Case(
        code="import os; os.environ['TORCH_DISTRIBUTED_DEBUG'] = 'DETAIL'\n"
        + _pair("dist.all_reduce(torch.ones(1)) if rank else dist.broadcast(torch.ones(1), 0)")
    ),
    "models-differ": Case(
        code=_pair(
            "layers = [torch.nn.Linear(2, 2) for _ in range(rank + 1)]\n"
            "torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))"
        )
    ),
    "unused-parameters": Case(
        code=_pair(
            """
            class Two(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.a, self.b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
                def forward(self, x):
                    return self.a(x)
            model = torch.nn.parallel.DistributedDataParallel(Two())
            for _ in range(2):
                model(torch.ones(1, 2)).sum().backward()
            """
        )
    ),
    "no-process-group": Case(code="import torch, torch.distributed as dist\ndist.all_reduce(torch.ones(1))"),
    "module-missing": Case(code="import flash_attn_of_another_environment"),
    "file-missing": Case(code="open('/data/imagenet/train.bin', 'rb')"),
    "disk-full": Case(
        code="open('/mnt/small/checkpoint.pt', 'wb', buffering=0).write(bytes(1 << 20)) and "
        "open('/mnt/small/more', 'wb', buffering=0).write(bytes(1))",
        prefix=_mounted("64k", "/mnt/small"),
    ),
    "disk-full-torch": Case(
        code="import torch; torch.save(torch.ones(1 << 20), '/mnt/small/checkpoint.pt')",
        prefix=_mounted("64k", "/mnt/small"),
    ),
    "open-files": Case(code="files = [open('/dev/null') for _ in range(99)]", prefix=_limited("nofile", "32")),
    "shared-memory": Case(
        code="""
        import torch
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, at): return torch.ones(1 << 18)
        if __name__ == "__main__":
            for batch in torch.utils.data.DataLoader(Data(), num_workers=2, batch_size=4): pass
        """,
        prefix=_mounted("64k", "/dev/shm"),
    ),
    "loader-died": Case(
        code="""
        import os, signal, torch
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, at): os.kill(os.getpid(), signal.SIGKILL)
        if __name__ == "__main__":
            for batch in torch.utils.data.DataLoader(Data(), num_workers=1): pass
        """
    ),
    "permission-denied": Case(
        code="open('/etc/shadow')",
        prefix=AS_PLAIN_USER,
    ),
    "address-family": Case(code="import socket; socket.socket(socket.AF_X25, socket.SOCK_STREAM)"),
    "name-unknown": Case(code="import socket; socket.create_connection(('gpu07.cluster.invalid', 29500))"),
    "no-route": Case(
        code="import socket; socket.create_connection(('10.99.0.7', 29500), 5)",
        prefix=("unshare", "--net", "sh", "-c",
                'ip link set lo up && ip route add unreachable 10.99.0.0/16 && exec "$@"', "sh"),
    ),
    "no-route-network": Case(
        code="import socket; socket.create_connection(('10.99.0.7', 29500), 5)", prefix=("unshare", "--net")
    ),
    "cpu-memory": Case(code="import torch; torch.empty(1 << 50)"),
    "cpu-memory-python": Case(code="all = [bytearray(1 << 30) for _ in range(8)]", prefix=_limited("as", "2000000000")),
    "cpu-memory-numpy": Case(code="import numpy; numpy.ones(1 << 50)"),
    "threads": Case(
        code="""
        import threading
        for _ in range(999): threading.Thread(target=threading.Event().wait, daemon=True).start()
        """,
        prefix=(*_limited("nproc", "20"), *AS_PLAIN_USER),
    ),
    "torch-without-cuda": Case(code="import torch; torch.ones(1).cuda()"),
    "undefined-symbol": Case(
        code=BUILD + "build('ext', 'int _ZN3c106detail14torchCheckFailEPKcS2_jS2_(void); "
        "int PyInit_ext(void) { return _ZN3c106detail14torchCheckFailEPKcS2_jS2_(); }')\nimport ext"
    ),
    "library-version": Case(
        code=BUILD + """
pathlib.Path("new.map").write_text("GLIBCXX_3.4.99 { global: newer; };")
pathlib.Path("old.map").write_text("GLIBCXX_3.4.30 { global: older; };")
build("libstdc++", "int newer(void) { return 1; }", "-Wl,--version-script=new.map", "-Wl,-soname,libstdc++.so")
build("ext", "int newer(void); int PyInit_ext(void) { return newer(); }", "libstdc++.so", "-Wl,-rpath,$ORIGIN")
build("libstdc++", "int older(void) { return 1; }", "-Wl,--version-script=old.map", "-Wl,-soname,libstdc++.so")
import ext
"""
    ),
    "library-missing": Case(
        code=BUILD + """
build("libcudnn_of_this", "int here(void) { return 1; }", "-Wl,-soname,libcudnn_of_this.so.9")
build("ext", "int here(void); int PyInit_ext(void) { return here(); }", "libcudnn_of_this.so")
pathlib.Path("libcudnn_of_this.so").unlink()
import ext
"""
    ),
    "checkpoint-torn": Case(
        code="""
        import torch
        torch.save(torch.ones(999999), "checkpoint.pt")
        with open("checkpoint.pt", "r+b") as file: file.truncate(999999)
        torch.load("checkpoint.pt")
        """
    ),
    "weights-only": Case(
        code="""
        import torch
        class Config: pass
        torch.save(Config(), "checkpoint.pt")
        torch.load("checkpoint.pt")
        """
    ),
    "torch-without-cuda-nccl": Case(code=GLOO + "os.environ.update(RANK='0', WORLD_SIZE='1', MASTER_ADDR='127.0.0.1', "
                            "MASTER_PORT='29867')\ndist.init_process_group('nccl')"),
    "environment-missing": Case(code="import torch.distributed as dist; dist.init_process_group('gloo')"),
    "rendezvous-refused": Case(
        code="""
        import sys
        from torch.distributed.run import main
        main(["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29866", "--rdzv-id=1",
              "--rdzv-conf=is_host=false,read_timeout=2", "x.py"])
        """
    ),
    "rendezvous-timeout": Case(
        code="""
        import sys
        from torch.distributed.run import main
        main(["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29865", "--rdzv-id=1",
              "--rdzv-conf=is_host=true,join_timeout=2", "x.py"])
        """
    ),
}  # fmt: skip


def main(names: list[str]) -> int:
    """Record the named failures, or all."""
    FOLDER.mkdir(exist_ok=True)
    for name in names or CASES:
        text = CASES[name].said()
        head = f"# provoked by `python -m tests.integration.provoked {name}`\n"
        (FOLDER / f"{name}.txt").write_text(head + text)
        print(f"{name}: {text.strip().splitlines()[-1][:200]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
