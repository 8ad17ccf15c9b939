"""Converts inventories that only Ansible can read (INI, folders, scripts, plugins, encrypted files) to YAML.

``up`` has `ansible-inventory` convert one that is no YAML, and `ansible-vault` decrypt what we use of one that is, and
remembers the result, so that later commands run neither Ansible nor a script.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import ClusterddpError, InventoryError
from clusterddp.inventory import ForeignInventory
from clusterddp.inventory.ansible_json import to_yaml
from clusterddp.inventory.load import files_of
from clusterddp.inventory.trusted import refuse_beside
from clusterddp.inventory.variables.variable_names import USED
from clusterddp.inventory.vaulted import as_yaml, is_encrypted, only_used, replace_values, vaulted_values
from clusterddp.provision.ansible import CONVERTED_HEADER, environment, program

if TYPE_CHECKING:
    from collections.abc import Sequence

STORED = "inventory.yaml"  # the name of a converted inventory, in a folder of its own


def convert(source: Path) -> tuple[str, dict[str, bytes]]:
    """Convert an inventory to YAML; return a name for its folder, and the files in it, the inventory last.

    They may contain decrypted secrets. An inventory that is a script is run. Raises ``InventoryError`` if Ansible is
    not installed, cannot read or decrypt it (its own messages are on stderr), or if others could have written a file
    it would read.
    """
    refuse_beside(source)
    try:
        files = files_of(source, lambda data: _decrypt([data], source)[0])
    except ForeignInventory:
        files = {source.name: _by_ansible(source)}
    files = _without_encrypted(files, source)
    path = source.resolve()
    head = f"{CONVERTED_HEADER}\n# {path}\n".encode(errors="surrogateescape")
    files[STORED] = head + as_yaml(files.pop(source.name))
    return f"inventory-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}", files


def _by_ansible(source: Path) -> bytes:
    """What ansible-inventory prints of an inventory, as YAML."""
    argv = [_program("ansible-inventory", source), "-i", str(source), "--list", "--export"]
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, check=False, env={**environment(source), "ANSIBLE_INVENTORY_UNPARSED_FAILED": "1"}
    )
    if done.returncode:
        message = f"Ansible cannot read it: ansible-inventory ended with {done.returncode}"
        raise InventoryError(message, where=str(source), remedy="what it says stands above")
    try:
        return to_yaml(done.stdout)
    except ValueError as error:
        raise InventoryError(f"ansible-inventory prints no JSON: {error}", where=str(source)) from None


def _program(name: str, source: Path) -> str:
    """The path of a program of Ansible's; ``InventoryError`` if it is not installed."""
    try:
        return program(name)
    except ClusterddpError as error:
        file = shlex.quote(str(source))
        remedy = f"`pip install ansible-core` brings it; `clusterddp up {file}` converts the inventory then"
        raise InventoryError(
            f"can only be read by Ansible; {error.message}", where=str(source), remedy=remedy
        ) from None


def _without_encrypted(files: dict[str, bytes], source: Path) -> dict[str, bytes]:
    """Replace what is encrypted by its plain text: values of variables that we use, and files as a whole."""
    found = {name: list(vaulted_values(data, USED, str(source.parent / name))) for name, data in files.items()}
    plain = iter(_decrypt([value.text.encode() for values in found.values() for value in values], source))
    made = dict(files)
    for name, values in found.items():
        if is_encrypted(files[name]):
            made[name] = only_used(next(plain), str(source.parent / name))
        elif values:
            texts = [_as_text(next(plain), str(source.parent / name)) for _ in values]
            made[name] = replace_values(files[name], values, texts)
    # A file that was encrypted as a whole may hold values that are encrypted once more.
    return _without_encrypted(made, source) if made != files else made


def _as_text(value: bytes, shown: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InventoryError("an encrypted value is no UTF-8 text", where=shown, remedy="encrypt text") from None


def _decrypt(texts: Sequence[bytes], source: Path) -> list[bytes]:
    """Have ansible-vault decrypt texts, with one call, so that the password is asked for once."""
    if not texts:
        return []
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(number) for number in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_bytes(text)
        argv = [_program("ansible-vault", source), "decrypt", *map(str, files)]
        done = subprocess.run(argv, stdout=subprocess.DEVNULL, check=False, env=environment(source))
        if done.returncode:
            message = f"cannot be decrypted: ansible-vault ended with {done.returncode}"
            raise InventoryError(message, where=str(source), remedy="what it says stands above")
        return [file.read_bytes() for file in files]
