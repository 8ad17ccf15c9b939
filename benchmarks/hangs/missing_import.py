"""One rank hangs in the import of a module.

class: missing
ranks: 1
also: stuck_module.py:2
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
folder = tempfile.mkdtemp()
Path(folder, "stuck_module.py").write_text("import time\ntime.sleep(3600)\n")
sys.path.append(folder)
print("ready", flush=True)
if dist.get_rank() == 1:
    import stuck_module  # HERE
dist.all_reduce(torch.ones(4))
