"""No device of another vendor."""

from typing import NoReturn


def _get_custom_mod_func(name: str) -> NoReturn:
    raise RuntimeError(f"no module of a backend of one's own has {name}")
