"""Converts inventories that only Ansible can read (INI, folders, scripts, plugins, encrypted files) to YAML.

``up`` has `ansible-inventory` convert one, and `ansible-vault` decrypt those ``!vault`` values that we use, and
remembers the result, so that later commands run neither Ansible nor a script.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from clusterddp.errors import ClusterddpError, InventoryError
from clusterddp.inventory.ansible_json import to_yaml
from clusterddp.inventory.trusted import refuse_beside
from clusterddp.inventory.variables.variable_names import USED
from clusterddp.inventory.vaulted import replace_values, vaulted_values
from clusterddp.provision.ansible import CONVERTED_HEADER, environment, program


def convert(source: Path) -> tuple[str, bytes]:
    """Convert an inventory to YAML; return a name for the file, and its text, which may contain decrypted secrets.

    An inventory that is a script is run. Raises ``InventoryError`` if Ansible is not installed, cannot read or decrypt
    it (its own messages are on stderr), or if others could have written a file it would read.
    """
    refuse_beside(source)
    try:
        argv = [program("ansible-inventory"), "-i", str(source), "--list", "--export"]
    except ClusterddpError as error:
        file = shlex.quote(str(source))
        remedy = f"`pip install ansible-core` brings it; `clusterddp up {file}` converts the inventory then"
        raise InventoryError(
            f"can only be read by Ansible; {error.message}", where=str(source), remedy=remedy
        ) from None
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, check=False, env={**environment(source), "ANSIBLE_INVENTORY_UNPARSED_FAILED": "1"}
    )
    if done.returncode:
        message = f"Ansible cannot read it: ansible-inventory ended with {done.returncode}"
        raise InventoryError(message, where=str(source), remedy="what it says stands above")
    try:
        text = to_yaml(done.stdout)
    except ValueError as error:
        raise InventoryError(f"ansible-inventory prints no JSON: {error}", where=str(source)) from None
    path = source.resolve()
    name = f"inventory-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}.yaml"
    text = _decrypt(text, source)
    return name, f"{CONVERTED_HEADER}\n# {path}\n".encode(errors="surrogateescape") + text


def _decrypt(text: bytes, source: Path) -> bytes:
    """Replace the individually encrypted values of variables that we use by their plain text."""
    entries = list(vaulted_values(text, USED))
    if not entries:
        return text
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(number) for number in range(len(entries))]
        for file, value in zip(files, entries, strict=True):
            file.write_text(value.text, encoding="utf-8")
        # One call for all files, so that the password is asked for once.
        argv = [program("ansible-vault"), "decrypt", *map(str, files)]
        done = subprocess.run(argv, stdout=subprocess.DEVNULL, check=False, env=environment(source))
        if done.returncode:
            message = f"holds !vault values that cannot be decrypted: ansible-vault ended with {done.returncode}"
            raise InventoryError(message, where=str(source), remedy="what it says stands above")
        plain_texts = [file.read_text(encoding="utf-8") for file in files]
    return replace_values(text, entries, plain_texts)
