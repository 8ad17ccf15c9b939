"""Two hundred malformed inventories: one line with the file and line, exit code 2, within two seconds and 200 MB."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import EXIT_USAGE, InventoryError
from clusterddp.inventory import load
from clusterddp.inventory.hostlist import variables_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS, BYTES = 2.0, 200 << 20
SEED = 15
GOOD = """\
all:
  vars:
    ansible_user: alice
    clusterddp_python: /opt/train/bin/python
    clusterddp_env: {OMP_NUM_THREADS: 8}
  children:
    gpu:
      hosts:
        gpu[01:04]:
        gpu05: {ansible_port: 2222, clusterddp_gpus: [0, 1]}
      vars: {clusterddp_ports: 29400-29499}
"""
LAUGHS = "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}' if n else '*a'] * 9)}]\n" for n in range(9))
DEEP_GROUPS = "".join(f"g{n}: {{children: {{g{n + 1}: }}}}\n" for n in range(2000)) + "g2000: {hosts: {x: }}\n"
WHOLE: dict[str, str | bytes] = {
    "aliases of aliases": LAUGHS,
    "deep lists": "all: {hosts: {a: {v: " + "[" * 100_000 + "]" * 100_000 + "}}}\n",
    "deep lists, unfinished": "[" * 100_000,
    "deep mappings": "{a: " * 50_000,
    "deep blocks": "".join(f"{' ' * n}a:\n" for n in range(2000)),
    "deep dashes": "- " * 20_000 + "x\n",
    "deep keys": "? " * 20_000 + "x\n",
    "deep JSON": '{"a":' * 20_000 + "1" + "}" * 20_000,
    "deep groups": DEEP_GROUPS,
    "a group below itself": "a: {children: {b: }}\nb: {children: {a: }}\nall: {hosts: {x: }}\n",
    "itself": "all: &a {hosts: {x: }, vars: *a}\n",
    "a range of millions": "all: {hosts: {'gpu[0:99999999]': }}\n",
    "ranges of ranges": "all: {hosts: {'gpu[0:999][0:999][0:999]': }}\n",
    "a number of a megabyte": f"all: {{hosts: {{x: {{v: {'9' * 1_000_000}}}}}}}\n",
    "a hexadecimal number": f"all: {{hosts: {{x: {{v: 0x{'f' * 500_000}}}}}}}\n",
    "base sixty": f"all: {{hosts: {{x: {{v: 1{':59' * 50_000}}}}}}}\n",
    "twenty megabytes": "all: {hosts: {x: {v: '" + "x" * 20_000_000 + "'}}}\n",
    "zeros": b"\0" * 4096,
    "a zero": b"all:\n  hosts: {x\0: }\n",
    "UTF-16": "all: {hosts: {x: }}\n".encode("utf-16"),
    "Latin-1": "all:\n  hosts: {x\u00e9: }\n".encode("latin-1"),
    "an ELF program": b"\x7fELF\2\1\1" + bytes(range(256)) * 16,
    "two documents": "all: {hosts: {x: }}\n---\nall: {}\n",
    "a Python object": "all: {hosts: {x: {v: !!python/object/apply:os.system [id]}}}\n",
    "an unknown anchor": "all: {hosts: *nope}\n",
    "a set": "all: {hosts: !!set {a, b}}\n",
    "base 64": "all: {hosts: {x: }, vars: {v: !!binary '\u00ff'}}\n",
    "JSON, cut": '{"all": {"hosts": {"a": {}}',
    "a table of another tool": "| host | gpus |\n|---|---|\n| a | 8 |\n",
    "HTML": "<html>\n<body>404 Not Found</body>\n</html>\n",
    "a shell script's text": "export A=1\nif true; then\n  echo\nfi\n",
}


def with_vars(*lines: str) -> str:
    return "all:\n  hosts: {x: }\n  vars:\n" + "".join(f"    {line}\n" for line in lines)


WIDE = ", ".join(f"k{number}: 1" for number in range(3000))
BOMBS = {  # each loaded before, or took all memory; each of a few lines
    "a thousand million laughs": with_vars(
        "a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))
    ),
    "merges of merges": with_vars(
        "a0: &a0 {k: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], k{n}: 1}}" for n in range(1, 40))
    ),
    "one merge many times": with_vars(f"a: &a {{{WIDE}}}", f"b: {{<<: [{', '.join(['*a'] * 3000)}]}}"),
    "many merges": with_vars(f"a: &a {{{WIDE}}}", *(f"b{n}: {{<<: *a}}" for n in range(3000))),
    "a long text many times": with_vars(f"a: &a '{'y' * 30_000}'", f"b: [{', '.join(['*a'] * 3000)}]"),
    "variables of many hosts": f"all:\n  vars:\n    a: &a {{{WIDE}}}\n  hosts:\n"
    + "".join(f"    h{n}: *a\n" for n in range(3000)),
    "laughs in pairs": with_vars(
        "a0: &a0 [x, x]",
        *(f"a{n}: &a{n} !!omap [{', '.join(f'k{m}: *a{n - 1}' for m in range(9))}]" for n in range(1, 9)),
    ),
    "a chain of aliases": with_vars("a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 5000))),
}
WHOLE.update(BOMBS)


def damaged() -> Iterator[str]:
    """The good one, with something gone, doubled or out of place: as an editor or a bad merge leaves it."""
    dice = random.Random(SEED)
    lines = GOOD.splitlines(keepends=True)
    signs = ["\t", "}", "]", "{", "[", ": :", "*", "&", "!", "%", "@", "'", '"', "- ", "<<<<<<< HEAD\n", "`", "|", ">"]
    while True:
        text = GOOD
        for _ in range(dice.randint(1, 3)):
            how, at = dice.randrange(4), dice.randrange(len(text))
            if how == 0:
                text = text[:at] + dice.choice(signs) + text[at:]
            elif how == 1:
                text = text[:at] + text[at + dice.randint(1, 12) :]
            elif how == 2:
                text = text.replace(dice.choice(lines), dice.choice(lines), 1)
            else:
                text = text[:at]
            text = text or " "
        yield text


def refusal(path: Path) -> str:
    """The line for an inventory, empty for one that can be read; nothing else may come of it."""
    began, found = time.process_time(), None
    try:
        load(path)
    except InventoryError as error:
        found = error
    assert time.process_time() - began < SECONDS
    if found is None:
        return ""
    said = str(found)
    assert (found.exit_code, said.count("\n")) == (EXIT_USAGE, 0)
    assert len(said) < 1000
    if "convert it: `ansible-inventory" not in said:  # which is of the whole file
        assert said.removeprefix(f"{path}:").split(":")[0].isdecimal(), said
    return said


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_that_is_no_inventory_is_one_line_in_bounded_time(name: str, tmp_path: Path) -> None:
    content = WHOLE[name]
    path = tmp_path / "inventory.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert refusal(path)


@pytest.mark.parametrize("folder", ["group_vars", "host_vars"])
@pytest.mark.parametrize("name", BOMBS)
def test_aliases_in_a_file_of_variables_are_counted_too(name: str, folder: str, tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("all: {hosts: {x: }}\n")
    variables = tmp_path / folder / ("all.yaml" if folder == "group_vars" else "x.yaml")
    variables.parent.mkdir()
    variables.write_text(BOMBS[name])
    began = time.process_time()
    with pytest.raises(InventoryError, match=rf"^{variables}:\d+: .*aliases"):
        load(tmp_path / "inventory.yaml")
    assert time.process_time() - began < SECONDS


def test_aliases_in_a_value_of_the_command_line_are_counted_too() -> None:
    began = time.process_time()
    with pytest.raises(InventoryError, match=r"^-e clusterddp_env:\d+: its aliases make"):
        variables_of([f"clusterddp_env={BOMBS['merges of merges']}"])
    assert time.process_time() - began < SECONDS


def test_anchors_and_merges_of_a_large_cluster_are_read(tmp_path: Path) -> None:
    variables = ", ".join(f"k{number}: {number}" for number in range(20))
    hosts = "".join(f"    gpu{number:04d}: {{<<: *node, ansible_port: {number + 1}}}\n" for number in range(5000))
    path = tmp_path / "inventory.yaml"
    path.write_text(f"all:\n  vars:\n    of_nodes: &node {{{variables}}}\n  hosts:\n{hosts}")
    found = load(path).hosts
    assert len(found) == 5000
    assert (found[7].port, found[7].vars["k19"]) == (8, 19)


def test_damaged_inventories_are_one_line_each(tmp_path: Path) -> None:
    path, wanted, tried = tmp_path / "inventory.yaml", 200 - len(WHOLE), 0
    count = max(wanted, int(os.environ.get("CLUSTERDDP_FUZZ") or 0) // 100)
    for text in damaged():
        path.write_text(text)
        tried += 1
        wanted -= bool(refusal(path))
        if wanted <= 0 and tried >= count:
            break
    assert tried < 20 * count  # most damage is found, and what is left means something


def test_what_is_no_plain_file_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    os.mkfifo(path)
    with pytest.raises(InventoryError, match="is no file; give the inventory's file"):
        load(path)


BOUNDED = """
import sys
from clusterddp.inventory import load
from clusterddp.errors import InventoryError
for path in sys.argv[1:]:
    try:
        load(path)
    except InventoryError:
        pass
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])  # ru_maxrss has the parent's
"""


def test_no_malformed_inventory_takes_much_memory(tmp_path: Path) -> None:
    paths = []
    for number, content in enumerate(WHOLE.values()):
        paths.append(tmp_path / f"{number}.yaml")
        paths[-1].write_bytes(content if isinstance(content, bytes) else content.encode())
    done = subprocess.run([sys.executable, "-c", BOUNDED, *paths], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < BYTES
