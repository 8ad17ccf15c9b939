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
from tests.integration.ansible_cases import BY_COMMAND, CORPUS, PATTERN_INVENTORY, PATTERNS, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BIN = Path(sys.executable).parent
EXAMPLES = sorted((Path(__file__).parents[3] / "inventories").glob("*.yaml"))
pytestmark = pytest.mark.skipif(not (BIN / "ansible-inventory").exists(), reason="ansible-core is not installed")


def _environment(home: Path) -> dict[str, str]:
    return {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(home),
        "ANSIBLE_HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_CONFIG": str(home / "none.cfg"),
    }


@pytest.fixture(scope="module")
def quiet_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")  # also the current folder: Ansible reads group_vars/ there, too


@pytest.fixture(scope="module")
def ansible(quiet_home: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Ask ansible-core about an inventory."""
    command = [sys.executable, str(Path(__file__).parents[1] / "ansible_oracle.py")]
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
    path = write(tmp_path, CORPUS[case])
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
    path = write(tmp_path, CORPUS[case])
    _assert_same(load(path), ansible(path))


def test_hosts_under_all_that_are_listed_by_the_real_command_come_in_our_order(
    tmp_path: Path, quiet_home: Path
) -> None:
    path = write(tmp_path, {"inventory.yaml": PATTERN_INVENTORY})
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
    path = write(tmp_path, {"inventory.yaml": PATTERN_INVENTORY})
    answer = ansible(path, *PATTERNS)
    inventory = load(path)
    selected = {pattern: _ours(inventory, pattern) for pattern in PATTERNS}
    for pattern in ("localhost", "::1", ""):  # Ansible invents a localhost; an empty limit is none there
        assert selected.pop(pattern) in (None, [], [host.name for host in inventory.hosts])
        del answer["selected"][pattern]
    assert selected == answer["selected"]


def _ours(inventory: Inventory, pattern: str) -> list[str] | None:
    try:
        return list(select(pattern, [host.name for host in inventory.hosts], inventory.groups).hosts)
    except InventoryError:
        return None


VARS = st.dictionaries(st.sampled_from(["u", "v", "w"]), st.integers(0, 9), max_size=2)
HOSTS = st.dictionaries(
    st.sampled_from(["h1", "h2", "h3", "gpu[01:03]", "n[a:c]", "webx", "gpu-x:2200", "h[1:4:2]"]), VARS, max_size=4
)


def _groups(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    """Groups whose names tell their depth, so that none can become its own child."""
    names = st.sampled_from([f"{name}{depth}" for name in ("a", "b", "gpu", "web")])
    below = _groups(depth + 1) if depth < 3 else st.just({})
    priority: st.SearchStrategy[dict[str, int]] = st.one_of(
        st.just({}), st.fixed_dictionaries({"ansible_group_priority": st.integers(-2, 3)})
    )
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
    path = write(folder, {"inventory.yaml": yaml.safe_dump(data, sort_keys=False), **texts})
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
