"""Our reading of an inventory beside ansible-core's own: variables, groups, order, host patterns."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterddp.errors import InventoryError
from clusterddp.inventory import Inventory, load
from clusterddp.inventory.patterns import select

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BIN = Path(sys.executable).parent
EXAMPLES = sorted((Path(__file__).parents[2] / "inventories").glob("*.yaml"))
pytestmark = pytest.mark.skipif(not (BIN / "ansible-inventory").exists(), reason="ansible-core is not installed")

# name → {file: text}; the inventory is inventory.yaml, or the first file of the case
CORPUS: dict[str, dict[str, str]] = {
    "one host": {"inventory.yaml": "all: {hosts: {gpu01: }}"},
    "hosts as one string": {"inventory.yaml": "all: {hosts: gpu01}\ngpu: {children: deep}\n"},
    "ungrouped and grouped": {
        "inventory.yaml": """
            all:
              hosts: {lone: {a: 1}, both: {}}
              children:
                gpu: {hosts: {both: {b: 2}, gpu01: }}
            extra: {hosts: {gpu02: }}
            ungrouped: {hosts: {gpu02: , explicit: }}
            """
    },
    "ranges": {
        "inventory.yaml": """
            all:
              hosts:
                gpu[01:03]: {pad: true}
                n[8:11]:
                s[0:9:3]-ib:
                a[a:e:2]:
                "[x:z]front":
                r[1:2]-n[01:02]: {two: ranges}
                z[:2]:
                p[1:2]:2222: {ported: true}
                c[a:b].example.org:22:
                "[::1]:2200":
                "fe80::[1:2]":
                "10.0.0.[1:3]":
            """
    },
    "a port counts where a host is first named": {
        "inventory.yaml": "a: {hosts: {'h1:22': , h2: }}\nb: {hosts: {'h1:33': , 'h2:44': , 'h3:55': {ansible_port: 66}}}"
    },
    "depth, priority, names": {
        "inventory.yaml": """
            all:
              vars: {who: all, all_only: 1, mapping: {from: all}}
              children:
                zeta: {vars: {who: zeta, tie: zeta}, hosts: {h: }}
                alpha: {vars: {who: alpha, tie: alpha}, hosts: {h: }}
                strong: {vars: {ansible_group_priority: 10, tie: strong, mapping: {from: strong}}, hosts: {h: , i: }}
                top: {vars: {deep: top, who: top}, children: {mid: {vars: {deep: mid}, children: {low: }}}}
            low: {vars: {deep: low, ansible_group_priority: "-5"}, hosts: {h: {own: 1, who: h}, j: }}
            """
    },
    "one group under two parents": {
        "inventory.yaml": """
            site: {children: {east: {vars: {v: east}}, rack: {vars: {v: rack}}}}
            east: {children: {rack: {hosts: {h1: }}}, vars: {w: east}}
            west: {children: {rack: }, vars: {w: west, ansible_group_priority: 3}}
            """
    },
    "vars files": {
        "inventory.yaml": "all: {vars: {a: inline, e: inline}, children: {gpu: {vars: {a: gpu inline}, hosts: {h1: {b: own}, h2: }}}}",
        "group_vars/all": "a: file all\nb: file all\nc: file all\n",
        "group_vars/gpu.yml": "b: file gpu\nansible_group_priority: 7\n",
        "group_vars/gpu.json": '{"b": "passed over"}',
        "group_vars/absent.yml": "b: nobody\n",
        "host_vars/h1.json": '{"d": 1e5, "f": [1, null, true], "t": "tab\\there", "\\u00e9": "\\ud83d\\ude00"}',
        "host_vars/h2": "b: h2\nclusterddp_nproc: 2\n",
        "host_vars/.hidden": "x: 1\n",
    },
    "vars folders": {
        "inventory.yaml": "gpu: {hosts: {h1: }}\nweb: {hosts: {h1: }}",
        "group_vars/gpu/10.yml": "a: 10\nb: 10\n",
        "group_vars/gpu/20.yaml": "a: 20\n",
        "group_vars/gpu/15": "a: 15\nc: 15\n",
        "group_vars/gpu/deep/x.yml": "a: deep\nd: deep\n",
        "group_vars/gpu/deep.d/x.yml": "a: not read\n",
        "group_vars/gpu/30.txt": "a: not read\n",
        "group_vars/gpu/.40.yml": "a: not read\n",
        "group_vars/gpu/50.yml~": "a: not read\n",
        "group_vars/gpu/60.yml": "",
        "group_vars/web.yaml/main.yml": "e: web\nb: web\n",
        "host_vars/h1/main.yml": "h: 1\n",
    },
    "values": {
        "inventory.yaml": """
            all:
              vars:
                day: 2024-01-02
                moment: 2024-01-02 03:04:05
                sexagesimal: 1:30:00
                octal: 0o17
                old_octal: 017
                float: 1.5
                huge: 1e5
                empty:
                yes: 1
                3: three
                nested: {1: a, true: b, deep: [1, {x: !unsafe "{{ y }}"}]}
                set: !!set {b, a}
                template: "{{ foo }} {% if x %}"
                unsafe: !unsafe "{{ bar }}"
                unsafe_number: !unsafe 5
                hidden: !vault |
                  $ANSIBLE_VAULT;1.1;AES256
                  6162
                text: |
                  two
                  lines
                groups: mine
                ansible_version: mine
              hosts:
                h1: &h1 {a: 1, b: 2}
                h2: {<<: *h1, b: 3}
                h3: *h1
                h4: {ansible_group_priority: 4, inventory_dir: mine}
            """
    },
    "duplicates elsewhere": {"inventory.yaml": "all: {hosts: {h1: {a: 1, a: 2, m: {x: 1, x: 2}}}}"},
    "unknown sections": {"inventory.yaml": "all: {hosts: {h1: }, typo: {h2: }, children: {g: {vars: , host: [1]}}}"},
    "a group and a host of one name": {
        "inventory.yaml": "gpu01: {hosts: {gpu01: {a: 1}, gpu02: {b: 1}}, vars: {a: 2, c: 3}}"
    },
    "json": {"inventory.json": '{\n\t"all": {"hosts": {"h1": {"a": 1e3, "b": "<<"}, "h2": null}}}'},
    "no extension": {"hosts": "all: {hosts: {h1: }}\n"},
    "hosts of ungrouped beside all": {
        "inventory.yaml": "g2: {hosts: {c: }}\nall: {hosts: {b: , a: }, children: {g1: {hosts: {d: , b: }}}}\nungrouped: {hosts: {e: }}"
    },
}
BY_COMMAND = ("ranges", "depth, priority, names", "vars files", "vars folders", "values")  # a second each
PATTERN_INVENTORY = """
all:
  hosts: {lone: }
  children:
    gpu: {hosts: {"gpu[01:06]": }}
    web: {hosts: {"web[a:c]": , gpu02: , gpu05: }}
    web_eu: {hosts: {webb: , web.eu: }}
    empty: {}
    "5": {hosts: {n5: }}
"""
PATTERNS = (
    *("all", "*", "gpu", "web", "empty", "ungrouped", "lone", "nothing", "gpu01", "5", "all:!gpu03", "!gpu", "&web"),
    *("gpu:web", "gpu,web", "web:gpu", "gpu:&web", "&web:gpu", "!gpu02:gpu:&web", "gpu:!web:lone", "gpu, lone ,"),
    *("gpu0[1-3]", "gpu*", "web*", "web?", "*b", "w*:!web_eu", "gpu0?", "~gpu0[24]", "~web", "~.*b$", "~(gpu|lone)"),
    *("gpu[0]", "gpu[-1]", "gpu[0:2]", "gpu[2:]", "gpu[1:0]", "gpu[3:1]", "gpu[5:9]", "gpu[-7]", "gpu[9]", "gpu[4-5]"),
    *(
        "web*[0:2]",
        "web*[1]",
        "all[0]",
        "all[-1]",
        "*[1:3]",
        "gpu[0:1]:web[0]",
        "gpu:!gpu[0]",
        "gpu:&gpu[0:2]",
        "empty[0]",
    ),
    *(
        "gpu[0],web[-1]",
        "web.eu",
        "web.*",
        "~web\\.",
        "gpu01:gpu02:gpu03",
        "gpu01,gpu99",
        "!gpu99",
        "gpu 5",
        "a:5",
        "lone:22",
    ),
    *(
        "gpu[01:03]",
        "::1",
        "gpu[x]",
        "gpu[",
        "~(",
        "",
        ",",
        "!",
        "all:!all",
        "localhost",
        "gpu[0:0]",
        "lone[0:]",
        "lone[1:]",
    ),
)


def _write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_dedented(text))
    return folder / next(iter(files))


def _dedented(text: str) -> str:
    lines = text.strip("\n").splitlines()
    indent = min((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), default=0)
    return "\n".join(line[indent:] for line in lines) + "\n"


def _environment(home: Path) -> dict[str, str]:
    return {
        **{"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(home), "ANSIBLE_HOME": str(home), "LC_ALL": "C.UTF-8"},
        "ANSIBLE_CONFIG": str(home / "none.cfg"),
    }


@pytest.fixture(scope="module")
def quiet_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")  # also the current folder: Ansible reads group_vars/ there, too


@pytest.fixture(scope="module")
def ansible(quiet_home: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Ask ansible-core about an inventory."""
    command = [sys.executable, str(Path(__file__).with_name("ansible_oracle.py"))]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=quiet_home,
        env=_environment(quiet_home),
    ) as oracle:

        def ask(path: Path, *patterns: str) -> dict[str, Any]:
            assert oracle.stdin is not None
            assert oracle.stdout is not None
            oracle.stdin.write(json.dumps({"path": str(path), "patterns": patterns}) + "\n")
            oracle.stdin.flush()
            answer: dict[str, Any] = json.loads(oracle.stdout.readline())
            return answer

        yield ask


def _assert_same(inventory: Inventory, theirs: dict[str, Any], *, ordered: bool = True) -> None:
    ours = json.loads(json.dumps(inventory.to_json()))
    names = [host["name"] for host in ours]
    assert names == theirs["order"] if ordered else sorted(names) == sorted(theirs["order"])
    assert {host["name"]: host["vars"] for host in ours} == _json_like(theirs["vars"])
    assert {host["name"]: host["groups"] for host in ours} == theirs["groups"]


def _json_like(value: Any) -> Any:
    """Sets have no order, in Ansible's output neither."""
    if isinstance(value, dict):
        return {key: sorted(item) if key == "set" else _json_like(item) for key, item in value.items()}
    return value


def _ansible_inventory(path: Path, home: Path) -> dict[str, Any]:
    done = subprocess.run(
        [BIN / "ansible-inventory", "-i", path, "--list"],
        capture_output=True,
        text=True,
        check=True,
        cwd=home,
        env=_environment(home),
    )
    listed: dict[str, Any] = json.loads(done.stdout)
    return listed


@pytest.mark.parametrize("case", BY_COMMAND)
def test_vars_and_groups_are_those_of_ansible_inventory_list(case: str, tmp_path: Path, quiet_home: Path) -> None:
    path = _write(tmp_path, CORPUS[case])
    listed = _ansible_inventory(path, quiet_home)
    ours = load(path)
    variables = {host["name"]: host["vars"] for host in json.loads(json.dumps(ours.to_json()))}
    assert {name: found for name, found in variables.items() if found} == _json_like(listed["_meta"]["hostvars"])
    for name, group in listed.items():
        if "hosts" in group and "children" not in group:
            assert list(ours.groups[name]) == group["hosts"]


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.name for path in EXAMPLES])
def test_our_example_inventories_mean_the_same_to_ansible(path: Path, quiet_home: Path) -> None:
    hostvars = _ansible_inventory(path, quiet_home)["_meta"]["hostvars"]
    assert {host["name"]: host["vars"] for host in load(path).to_json()} == hostvars


@pytest.mark.parametrize("case", [name for name in CORPUS if name != "values"])  # tags are shown by the command only
def test_vars_groups_and_order_are_ansibles(case: str, tmp_path: Path, ansible: Callable[..., dict[str, Any]]) -> None:
    path = _write(tmp_path, CORPUS[case])
    _assert_same(load(path), ansible(path))


def test_hosts_under_all_that_are_listed_by_the_real_command_come_in_our_order(
    tmp_path: Path, quiet_home: Path
) -> None:
    path = _write(tmp_path, {"inventory.yaml": PATTERN_INVENTORY})
    done = subprocess.run(
        [BIN / "ansible", "-i", path, "all", "--limit", "web:gpu:!gpu[0]", "--list-hosts"],
        capture_output=True,
        text=True,
        check=True,
        cwd=quiet_home,
        env=_environment(quiet_home),
    )
    listed = [line.strip() for line in done.stdout.splitlines()[1:]]
    assert [host.name for host in load(path).limit("web:gpu:!gpu[0]").hosts] == listed


def test_host_patterns_select_what_ansible_selects(tmp_path: Path, ansible: Callable[..., dict[str, Any]]) -> None:
    path = _write(tmp_path, {"inventory.yaml": PATTERN_INVENTORY})
    answer = ansible(path, *PATTERNS)
    inventory = load(path)
    selected = {pattern: _ours(inventory, pattern) for pattern in PATTERNS}
    for pattern in {"localhost", "::1", ""}:  # Ansible invents a localhost; an empty limit is none there
        assert selected.pop(pattern) in (None, [], [host.name for host in inventory.hosts])
        del answer["selected"][pattern]
    assert selected == answer["selected"]


def _ours(inventory: Inventory, pattern: str) -> list[str] | None:
    try:
        return list(select(pattern, [host.name for host in inventory.hosts], inventory.groups).hosts)
    except InventoryError:
        return None


NAMES = st.sampled_from(["a", "b", "gpu", "web", "x1"])
VARS = st.dictionaries(st.sampled_from(["u", "v", "w"]), st.integers(0, 9), max_size=2)
HOSTS = st.dictionaries(
    st.sampled_from(["h1", "h2", "h3", "gpu[01:03]", "n[a:c]", "webx", "gpu-x:2200", "h[1:4:2]"]), VARS, max_size=4
)


def _groups(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    """Groups whose names tell their depth, so that none can become its own child."""
    names = st.sampled_from([f"{name}{depth}" for name in ("a", "b", "gpu", "web")])
    below = _groups(depth + 1) if depth < 3 else st.just({})
    priority = st.one_of(st.just({}), st.fixed_dictionaries({"ansible_group_priority": st.integers(-2, 3)}))
    variables = st.builds(lambda some, more: {**some, **more}, VARS, priority)
    group = st.fixed_dictionaries({}, optional={"vars": variables, "hosts": HOSTS, "children": below})
    return st.dictionaries(names, group, max_size=3)


INVENTORIES = st.builds(
    lambda hosts, variables, children, more: {
        "all": {"hosts": hosts, "vars": variables, "children": children},
        **more,
    },
    HOSTS.filter(bool),
    VARS,
    _groups(1),
    _groups(2),
)
FILES = st.dictionaries(
    st.sampled_from(["group_vars/all.yml", "group_vars/gpu1", "group_vars/web2.json", "host_vars/h1.yaml"]), VARS
)
PARTS = st.sampled_from(
    [
        "all",
        "gpu1",
        "web2",
        "a1",
        "b3",
        "h1",
        "h*",
        "gpu*",
        "*",
        "~h[12]",
        "~gpu",
        "n?",
        "gpu0[12]",
        "nope",
        "ungrouped",
    ]
)
LIMITS = st.builds(
    lambda parts, separator: separator.join(parts),
    st.lists(st.builds(str.__add__, st.sampled_from(["", "", "&", "!"]), PARTS), min_size=1, max_size=4),
    st.sampled_from([":", ","]),
)


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=INVENTORIES, files=FILES, limits=st.lists(LIMITS, max_size=6))
def test_any_inventory_means_what_it_means_to_ansible(
    tmp_path_factory: pytest.TempPathFactory,
    ansible: Callable[..., dict[str, Any]],
    data: dict[str, Any],
    files: dict[str, Any],
    limits: list[str],
) -> None:
    folder = tmp_path_factory.mktemp("case")  # a new one each: Ansible remembers which vars files it found
    texts = {name: json.dumps(content) for name, content in files.items()}
    path = _write(folder, {"inventory.yaml": yaml.safe_dump(data, sort_keys=False), **texts})
    answer, inventory = ansible(path, *limits), load(path)
    ordered = sum(bool(children) for children in _children(data)) <= 1
    # Below the first level Ansible walks a set of groups, ordered by memory address: its own runs differ there.
    _assert_same(inventory, answer, ordered=ordered)
    for limit in limits:
        ours = sorted(_ours(inventory, limit) or [])
        assert ours == sorted(answer["limited"][limit] or []), limit
    shutil.rmtree(folder)


def _children(groups: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The children of every group but ``all``."""
    for name, group in groups.items():
        children = group.get("children", {})
        if name != "all":
            yield children
        yield from _children(children)
