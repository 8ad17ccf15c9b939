"""No GPUs, or where LEAN_TORCH_GPUS is set those that CUDA_VISIBLE_DEVICES names, which can do nothing."""

import os


def is_available() -> bool:
    """Whether there is a GPU."""
    return False


def device_count() -> int:
    """How many."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "") if "LEAN_TORCH_GPUS" in os.environ else ""
    return len([word for word in visible.split(",") if word])


def get_device_name(index: int) -> str:
    """The name of one."""
    return f"none {index}"
