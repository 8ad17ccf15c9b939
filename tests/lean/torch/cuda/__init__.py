"""No GPUs."""


def is_available() -> bool:
    """Whether there is a GPU."""
    return False


def device_count() -> int:
    """How many."""
    return 0
