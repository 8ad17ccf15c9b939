"""torch's C++ part without its operators, its version, and its way of logging."""

import contextlib
import ctypes
import logging
from datetime import datetime
from pathlib import Path

with contextlib.suppress(OSError):  # no compiler was there
    ctypes.CDLL(str(Path(__file__).with_name("undeclared.so")), ctypes.RTLD_GLOBAL)

from torch import _C, cuda, distributed, version  # noqa: F401
from torch._C import *  # noqa: F403
from torch.torch_version import __version__ as __version__


class _Lines(logging.Formatter):
    """As `torch._logging` writes them."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).strftime("%m%d %H:%M:%S.%f")[:-3]  # noqa: DTZ006 - as torch does
        path = Path(record.pathname).relative_to(Path(__file__).parents[1])
        begin = f"{record.levelname[0]}{when}000 {record.process} {path}:{record.lineno}]"
        return "\n".join(f"{begin} {line}" for line in super().format(record).split("\n"))


_handler = logging.StreamHandler()
_handler.setFormatter(_Lines())
_logger = logging.getLogger("torch")
_logger.addHandler(_handler)
_logger.setLevel(logging.WARNING)
_logger.propagate = False
