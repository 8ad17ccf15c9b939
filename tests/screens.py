"""`python -m tests.screens FOLDER [SCENE…]`: commands at a real terminal (tmux) on the lab, as pictures.

They are of 80 and of 40 columns, the README's of 100. A picture holds what the terminal shows after the command, with
its colours; nothing in it is written by hand. Root, Linux, tmux and ansible-core are needed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from tests.lab import Lab
from tests.lab.system import command, wait_until
from tests.lean import WHOLE_TORCH

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

WIDTHS = (80, 40)
HEIGHT = 50  # lines of the terminal; what has left it at its top is in the picture too
BIN = Path(sys.executable).parent
LIMIT = 300.0  # seconds for one command
SMALL_SHM = "gpu05"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """One command of a user's.

    Attributes:
        name: Of its pictures.
        words: What is typed after ``$ clusterddp``.
        before: Commands that are typed, and shown, before it.
        hosts: How many the lab has.
        widths: Of its pictures, in columns.
        answers: What is typed, each after what it then shows.
        until: What it shows before Ctrl-C ends it.
        script: Of a run on three hosts that it is about.
        ready: What a rank of that run has printed before.
    """

    name: str
    words: str
    before: tuple[str, ...] = ()
    hosts: int = 8
    widths: tuple[int, ...] = WIDTHS
    answers: tuple[tuple[str, str], ...] = ()
    until: str = ""
    script: str = ""
    ready: str = ""


RANKS = "gpu00,gpu01,gpu02"  # of the runs
# Rank 1's batches take 10 ms longer than the others'.
SLOW_LOADER = """
import threading, torch
import torch.distributed as dist
dist.init_process_group("gloo")
seconds = 0.11 if dist.get_rank() == 1 else 0.1
for step in range(1_000_000):
    threading.Event().wait(seconds)
    dist.all_reduce(torch.ones(4))
    if step % 50 == 10:
        print("step", step, flush=True)
"""
LOADER_HANGS = (Path(__file__).parents[1] / "benchmarks" / "hangs" / "missing_loader.py").read_text()
BREAKPOINT = """
import torch
import torch.distributed as dist

def step(batch):
    loss = (batch - batch.mean()).pow(2).sum().log()
    if not loss.isfinite():
        breakpoint()
    dist.all_reduce(loss)

dist.init_process_group("gloo")
step(torch.ones(8) if dist.get_rank() == 1 else torch.arange(8.0))
"""
# Somebody's first: a shard of rank 2's data is damaged.
TRAIN = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def loss_of(batch):
    loss = model(batch).pow(2).mean()
    if loss.isnan():
        raise ValueError(f"NaN in the loss of {shard}")
    return loss

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
shard = f"{sys.argv[1]}-{dist.get_rank()}.bin"
for step in range(3):
    batch = torch.randn(32, 8)
    if shard == "night-2.bin" and step == 1:
        batch[7] = torch.nan
    loss = loss_of(batch)
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.3f}", flush=True)
dist.destroy_process_group()
""".lstrip()
SCENES = (
    Scene(
        name="first",
        before=("up inventory.yaml", "run train.py day"),
        words="run train.py night",
        hosts=3,
        widths=(100,),
    ),
    Scene(name="up", words="up inventory.yaml"),  # the project remembers it; then a host's /dev/shm shrinks
    Scene(name="exec-gather", words="exec --gather -- df -h --output=target,size /dev/shm"),
    Scene(name="doctor-fix", words="doctor --only shm --fix -- -u root", answers=(("run them? [y/N]: ", "y"),)),
    Scene(name="top", words="top", until="late in each step", script=SLOW_LOADER, ready="step 10"),
    Scene(name="why", words="why night", script=LOADER_HANGS, ready="ready"),
    Scene(
        name="debug",
        words="debug 1",
        answers=(("breakpoint() (Pdb)", "p loss, batch"), ("1.]))", "u"), ("-> step(", "q")),
        script=BREAKPOINT,
        ready="attaches a terminal",
    ),
)


class Terminal:
    """A shell in tmux, in a window of that many columns.

    Args:
        folder: Where the shell is, and the home folder.
        columns: How wide it is.
    """

    def __init__(self, folder: Path, columns: int) -> None:
        self._tmux = ("tmux", "-S", str(folder / "tmux"), "-f", "/dev/null")
        tell = f"tmux -S {folder}/tmux wait-for -S prompt"  # no word of it is seen
        env = {"HOME": str(folder), "PATH": f"{BIN}:{os.environ['PATH']}", "PS1": "$ ", "PROMPT_COMMAND": tell,
               "TERM": "tmux-256color", "LC_ALL": "C.UTF-8", "ANSIBLE_PIPELINING": "1"}  # fmt: skip
        shell = ["env", "-i", *(f"{name}={value}" for name, value in env.items()), "bash"]
        size = ("-x", str(columns), "-y", str(HEIGHT))
        command(*self._tmux, "new-session", "-d", *size, "-c", str(folder / "train"), *shell, "--norc", "--noprofile")
        self._wait_for_prompt()
        wait_until("the prompt", lambda: "$" in self._shown())

    def run(self, scene: Scene) -> str:
        """Type a scene's commands and wait for the end of each; what is on the terminal then, with its colours."""
        for words in scene.before:
            self._type(f"clusterddp {words}")
            self._wait_for_prompt()
        self._type(f"clusterddp {scene.words}")
        for asked, answer in scene.answers:
            self._wait_for(asked.strip())
            self._type(answer)
        if scene.until:
            self._wait_for(scene.until)
            command(*self._tmux, "send-keys", "C-c")
        self._wait_for_prompt()
        return self._shown("-e").rstrip().removesuffix("$").rstrip()

    def close(self) -> None:
        """End the shell and tmux."""
        command(*self._tmux, "kill-server", check=False)

    def _type(self, line: str) -> None:
        command(*self._tmux, "send-keys", "-l", line)
        command(*self._tmux, "send-keys", "Enter")

    def _shown(self, *options: str) -> str:
        return command(*self._tmux, "capture-pane", "-p", *options, "-S", "-")

    def _wait_for(self, wanted: str) -> None:
        wait_until(wanted, lambda: wanted in " ".join(self._shown().split()), timeout=LIMIT)

    def _wait_for_prompt(self) -> None:
        subprocess.run([*self._tmux, "wait-for", "prompt"], timeout=LIMIT, check=True)


def picture(text: str, title: str, name: str, columns: int) -> str:
    """An SVG of what a terminal shows. It loads nothing, so a page that holds it shows it with its own font."""
    # A column more, for emoji that tmux takes for one column wide.
    console = Console(record=True, width=columns + 1, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(text), soft_wrap=True)
    drawn = console.export_svg(title=title, unique_id=name)
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


@contextlib.contextmanager
def home() -> Iterator[Path]:
    """A home with an empty project."""
    with tempfile.TemporaryDirectory(prefix="screens-") as made:
        folder = Path(made)
        (folder / "train").mkdir()
        yield folder


def at_home(folder: Path, *words: str) -> str:
    """What a command of the same user prints, elsewhere than at the terminal."""
    return command("env", f"HOME={folder}", str(BIN / "clusterddp"), "-C", str(folder / "train"), *words).strip()


@contextlib.contextmanager
def running(project: Path, scene: Scene) -> Iterator[None]:
    """The scene's run of three ranks, in a project that remembers its hosts, once its ranks are ready."""
    if not scene.script:
        yield
        return
    (project / "train.py").write_text(scene.script)
    words = ("run", "--detach", "--limit", RANKS, "--time-limit", "8h", "--name", "night", "train.py")
    run = at_home(project.parent, *words)
    try:
        wait_until(scene.ready, lambda: scene.ready in at_home(project.parent, "logs", run), timeout=LIMIT)
        yield
    finally:
        at_home(project.parent, "stop", "--grace", "0", run)


def shots(columns: int, hosts: int, wanted: Container[str]) -> Iterator[tuple[str, str]]:
    """The wanted scenes of so many hosts, of their own, in a window of that width: each one's name and picture."""
    scenes = [
        scene
        for scene in SCENES
        if scene.hosts == hosts and columns in scene.widths and (scene.name in wanted or scene.name == "up")
    ]
    if not any(scene.name in wanted for scene in scenes):
        return
    more = {"all": {"ansible_python_interpreter": "/usr/bin/python3"}}
    with Lab(hosts, variables=WHOLE_TORCH) as lab, home() as folder:
        lab.let_root_in()
        lab.write_inventory(folder / "train" / "inventory.yaml", more=more)
        (folder / "train" / "train.py").write_text(TRAIN)
        for scene in scenes:
            with running(folder / "train", scene), contextlib.closing(Terminal(folder, columns)) as terminal:
                shown = terminal.run(scene)
            if found := re.search(rf"({re.escape(str(folder))}|{re.escape(str(lab.folder))})\S*", shown):
                sys.exit(f"{scene.name} shows {found[0]}, a path of this machine:\n{shown}")
            name = f"{scene.name}-{columns}"
            if scene.name in wanted:
                yield name, picture(shown, f"{columns} columns", name, columns)
            if scene.name == "up":
                at_home(folder, "sync")
                lab.host(SMALL_SHM).run(["mount", "-o", "remount,size=64m", "/dev/shm"], user="root")


def main() -> None:
    """Make all pictures, or those of the scenes that are named."""
    target, wanted = Path(sys.argv[1]), sys.argv[2:] or [scene.name for scene in SCENES]
    target.mkdir(parents=True, exist_ok=True)
    for columns in sorted({width for scene in SCENES for width in scene.widths}):
        for hosts in sorted({scene.hosts for scene in SCENES}):
            for name, drawn in shots(columns, hosts, wanted):
                (target / f"{name}.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
