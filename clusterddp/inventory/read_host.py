"""Reads a host's variables into a :class:`HostEntry`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from clusterddp.errors import InventoryError
from clusterddp.inventory import ansible_names, validate
from clusterddp.inventory.variables import variable_names
from clusterddp.inventory.variables.declare import PREFIX
from clusterddp.inventory.variables.reader import VARIABLE_NAME, VariableReader, check_usable, refuse_value
from clusterddp.inventory.variables.variable_table import VARIABLES, HostEntry
from clusterddp.inventory.yaml_values import Marked, plain, refuse_duplicates
from clusterddp.inventory.yamlfile import parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterddp.inventory.group_vars import Layer
    from clusterddp.inventory.yaml_values import Setting


def host_entry(name: str, where: str, groups: Sequence[str], layers: Sequence[Layer]) -> tuple[HostEntry, list[str]]:
    """Read one host from its variables' layers, weakest first; returns the entry, and notices.

    A host whose role is ``none`` is never touched, so an invalid value there is only a notice. Else it is an
    ``InventoryError``. ``where`` is ``file:line`` of the host's first mention.
    """
    merged = {
        key: setting for layer in layers for key, setting in layer.items() if key not in variable_names.ANSIBLE_OWNS
    }
    reader = VariableReader(merged)
    basics: dict[str, Any] = {
        "name": name,
        "groups": tuple(sorted(groups)),
        "vars": {key: plain(setting.value) for key, setting in merged.items()},
        "where": where,
        **_values(reader, ["role"]),
    }
    try:
        settings = {**_values(reader, VARIABLES), **_read_env(layers)}
        if "address" not in settings:
            local = settings.get("connection") == "local"
            settings["address"] = name if local else validate.address(name, f"{where}:{name}" if where else name)
    except InventoryError as error:
        if basics.get("role") != "none":
            raise
        return HostEntry(address=name, **basics), [f"{error} (passed over: {name} has the role none)"]
    if settings.get("connection") == "local":
        settings.setdefault("warm", 0.0)  # nothing is left running on the operator's own machine
    return HostEntry(**{**basics, **settings}), _notices_of(merged)


def entry_of(name: str, values: Mapping[str, object]) -> HostEntry:
    """Read a host from values, by the names of our variables without ``clusterddp_``, or else of its fields.

    Each is checked, and may be written, as in an inventory. Raises ``InventoryError``, which names the variable.
    """
    # A mapping of Fabric's configuration is no dict.
    text = json.dumps(
        {_variable_name(key): value for key, value in values.items()},
        default=lambda value: dict(value) if hasattr(value, "keys") else str(value),
    )
    layer = variable_names.settings(parse(text, f"variables of {name}").data)
    return host_entry(name, "", (), [layer])[0]


def _variable_name(key: str) -> str:
    """Return the inventory variable that a name means: ours without its prefix, or else a field of HostEntry."""
    ours = f"{PREFIX}{key}"  # first: `address` is the one for data, not the field of that name
    return ours if ours in variable_names.OURS or key not in VARIABLES else VARIABLES[key].names[-1]


def _values(reader: VariableReader, names: Iterable[str]) -> dict[str, Any]:
    """The values of the fields that a variable sets."""
    declared = {name: VARIABLES[name] for name in names}
    return {name: found.read(reader) for name, found in declared.items() if found.read and reader.get(*found.names)}


def _notices_of(merged: Layer) -> list[str]:
    """Notices about variables that look like Ansible's and have no effect."""
    notices = [
        f"{setting.where}: no variable of Ansible's, so it does nothing here; did you mean {meant}?"
        for name, setting in merged.items()
        if (meant := variable_names.misspelled(name))
    ]
    ssh_args = merged.get(ansible_names.SSH_ARGS_UNREAD)
    if ssh_args is not None:
        notices.append(
            f"{ssh_args.where}: not read; what the connection needs belongs into {ansible_names.COMMON_ARGS[0]}"
        )
    return notices


_ENV, _SECRETS = "clusterddp_env", "clusterddp_secrets"


def _read_env(layers: Sequence[Layer]) -> dict[str, Any]:
    """A host's ``env`` and ``secrets``, merged key by key over its layers; the stronger one wins.

    Ansible replaces a mapping or list whole; for these two a host's one variable would drop its group's ten.
    """
    env: dict[str, str] = {}
    secrets: dict[str, None] = {}
    for layer in layers:
        env.update(_env(layer.get(_ENV)))
        secrets.update(dict.fromkeys(_secrets(layer.get(_SECRETS))))
    return {"env": env, "secrets": tuple(secrets)}


def _env(setting: Setting | None) -> dict[str, str]:
    """The variables in one layer's ``clusterddp_env``."""
    if setting is None or setting.value is None:
        return {}
    value = check_usable(setting).value
    if not isinstance(value, Marked):
        refuse_value(setting, "a mapping of names to values", "write 'NAME: value' lines below it")
    refuse_duplicates(value, "variable")
    return {_checked_name(name, value.where(name)): _text(value, name) for name in value}


def _text(mapping: Marked, name: str) -> str:
    """The value as written: ``0010``, ``3.10`` and ``yes`` reach the job as these characters."""
    value, as_written = mapping[name], mapping.texts.get(name)
    text = value if isinstance(value, str) else as_written
    if value is None or text is None or "\0" in text:
        # The value is not shown: it may be a secret.
        remedy = "quote it; write '' for an empty value"
        raise InventoryError(f"{name} in {_ENV} must be text", where=mapping.where(name), remedy=remedy)
    return text


def _secrets(setting: Setting | None) -> list[str]:
    """The names in one layer's ``clusterddp_secrets``."""
    if setting is None or setting.value is None:
        return []
    if not isinstance(check_usable(setting).value, list):
        remedy = "write [NAME, NAME]; the values come from your environment"
        raise InventoryError("must be a list of names", where=setting.where, remedy=remedy)
    return [_checked_name(name, setting.where) for name in setting.value]


def _checked_name(name: object, where: str) -> str:
    """An environment variable's name, checked."""
    if not isinstance(name, str) or not VARIABLE_NAME.fullmatch(name):
        # The text is not shown: someone may have written a secret value where a name belongs.
        remedy = "use letters, digits and _, not a digit first"
        raise InventoryError("holds something that is no name of an environment variable", where=where, remedy=remedy)
    return name
