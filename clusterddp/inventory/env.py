"""Merges ``clusterddp_env`` and ``clusterddp_secrets`` key by key over a host's groups; the stronger layer wins.

Ansible replaces a mapping or list whole; for these two that would make a host's one variable drop its group's ten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterddp.errors import InventoryError
from clusterddp.inventory.reader import VARIABLE_NAME, refuse_value, usable
from clusterddp.inventory.yamlfile import Marked, refuse_duplicates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterddp.inventory.group_vars import Layer
    from clusterddp.inventory.yamlfile import Setting

_ENV, _SECRETS = "clusterddp_env", "clusterddp_secrets"


def read_env(layers: Sequence[Layer]) -> dict[str, Any]:
    """A host's ``env`` and ``secrets``, from its variables' layers, weakest first; raises InventoryError."""
    env: dict[str, str] = {}
    secrets: dict[str, None] = {}
    for layer in layers:
        env.update(_env(layer.get(_ENV)))
        secrets.update(dict.fromkeys(_secrets(layer.get(_SECRETS))))
    return {"env": env, "secrets": tuple(secrets)}


def _env(setting: Setting | None) -> dict[str, str]:
    if setting is None or setting.value is None:
        return {}
    value = usable(setting).value
    if not isinstance(value, Marked):
        refuse_value(setting, "a mapping of names to values", "write 'NAME: value' lines below it")
    refuse_duplicates(value, "variable")
    return {_name(name, value.where(name)): _text(value, name) for name in value}


def _text(mapping: Marked, name: str) -> str:
    """The value as written: ``0010``, ``3.10`` and ``yes`` reach the job as these characters."""
    value, written = mapping[name], mapping.texts.get(name)
    text = value if isinstance(value, str) else written
    if value is None or text is None or "\0" in text:
        # The value is not shown: it may be a secret.
        remedy = "quote it; write '' for an empty value"
        raise InventoryError(f"{name} in {_ENV} must be text", where=mapping.where(name), remedy=remedy)
    return text


def _secrets(setting: Setting | None) -> list[str]:
    if setting is None or setting.value is None:
        return []
    if not isinstance(usable(setting).value, list):
        remedy = "write [NAME, NAME]; the values come from your environment"
        raise InventoryError("must be a list of names", where=setting.where, remedy=remedy)
    return [_name(name, setting.where) for name in setting.value]


def _name(name: object, where: str) -> str:
    if not isinstance(name, str) or not VARIABLE_NAME.fullmatch(name):
        # The text is not shown: someone may have written a secret value where a name belongs.
        remedy = "use letters, digits and _, not a digit first"
        raise InventoryError("holds something that is no name of an environment variable", where=where, remedy=remedy)
    return name
