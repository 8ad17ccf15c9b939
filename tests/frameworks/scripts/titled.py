"""A worker that gives itself a title, as Ray's and inference servers' do."""

# mypy: ignore-errors

import os
from pathlib import Path

import setproctitle

before = setproctitle.getproctitle()
setproctitle.setproctitle(f"trainer rank {os.environ['RANK']}")
shown = Path("/proc/self/cmdline").read_text().strip("\0")
print("result", os.environ["RANK"], before.split()[1:], shown, len(os.environ["PATH"]) > 0)
