"""What training asks of torch's compiler where nothing is compiled; all of it takes 1.5 s of CPU to import."""

from types import SimpleNamespace
from typing import Any

from torch._dynamo import config as config


def disable(function: Any = None, recursive: bool = True, **_: Any) -> Any:  # noqa: ARG001, FBT001, FBT002 - torch's
    """The function as it is."""
    return function or disable


def graph_break() -> None:
    """Nothing."""


utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization")
trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)
eval_frame = SimpleNamespace(OptimizedModule=type("OptimizedModule", (), {}))
