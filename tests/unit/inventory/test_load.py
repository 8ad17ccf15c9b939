"""Reading an inventory: what hosts become, what is joined, what is only noticed, what a limit leaves."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import InventoryError
from clusterddp.inventory import Inventory, built_in, load
from clusterddp.inventory.load import _LOCAL_PATHS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.inventory import HostEntry

INVENTORIES = Path(__file__).parents[3] / "inventories"


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    return tmp_path / "inventory.yaml"


def _load(path: Path, text: str) -> Inventory:
    path.write_text(text)
    return load(path)


def _one(path: Path, *lines: str) -> Inventory:
    return _load(path, "all:\n  hosts:\n    h:\n  vars:\n" + "".join(f"    {line}\n" for line in lines or ("a: 1",)))


def names(hosts: Iterable[HostEntry]) -> tuple[str, ...]:
    return tuple(host.name for host in hosts)


def test_a_host_with_nothing_said_has_the_documented_defaults(inventory: Path) -> None:
    host = _load(inventory, "all:\n  hosts:\n    gpu01:\n").hosts[0]
    assert (host.name, host.address, host.port, host.user, host.connection) == ("gpu01", "gpu01", None, None, "ssh")
    assert (host.role, host.nproc, host.gpus, host.ports) == ("node", None, None, (29400, 29499))
    assert (host.transport, host.launcher, host.setup, host.env) == ("auto", "ssh", (), {})
    assert (host.fork_server, host.warm, host.keeps_warm) == (True, 900, True)
    assert host.where == f"{inventory}:3"


def test_everything_we_read_arrives(inventory: Path) -> None:
    host = _one(
        inventory,
        "ansible_host: fe80::1%eth0",
        "ansible_port: '2222'",
        "ansible_user: alice",
        "ansible_ssh_private_key_file: ~/.ssh/id_x",
        "ansible_ssh_common_args: -o ProxyJump=b -o 'UserKnownHostsFile=/a b'",
        "ansible_ssh_extra_args: -v",
        "ansible_python_interpreter: /usr/bin/python3",
        "clusterddp_role: spare",
        'clusterddp_setup: "module load cuda\\n\\n# docker run is not for us\\nn=${#a[@]}\\n"',
        "clusterddp_python: /opt/my env/bin/python",
        "clusterddp_nproc: 4",
        "clusterddp_gpus: [0, GPU-aa-bb]",
        "clusterddp_secrets: [TOKEN]",
        "clusterddp_address: 10.0.0.1",
        "clusterddp_interface: ib0.8001",
        "clusterddp_ports: [30000, 30099]",
        "clusterddp_workdir: /scratch/run/",
        "clusterddp_links: {data: /scratch/sets, a/b: ~/c}",
        "clusterddp_state: ~/.ddp",
        "clusterddp_transport: openssh",
        "clusterddp_launcher: slurm",
        "clusterddp_slurm_partition: a100",
        "clusterddp_slurm_time: 1:30:00",
        "clusterddp_slurm_lines: ['--exclusive']",
    ).hosts[0]
    assert (host.address, host.port, host.user) == ("fe80::1%eth0", 2222, "alice")
    assert host.identity_file == Path("~/.ssh/id_x").expanduser()
    assert host.ssh_args == ("-o", "ProxyJump=b", "-o", "UserKnownHostsFile=/a b", "-v")
    assert (host.ansible_python, host.role, host.nproc) == ("/usr/bin/python3", "spare", 4)
    assert host.setup == ("module load cuda", "# docker run is not for us", "n=${#a[@]}")
    assert (host.python, host.gpus, host.secrets) == ("/opt/my env/bin/python", ("0", "GPU-aa-bb"), ("TOKEN",))
    assert (host.data_address, host.interface, host.ports) == ("10.0.0.1", "ib0.8001", (30000, 30099))
    assert (host.workdir, host.state, host.transport) == ("/scratch/run", "~/.ddp", "openssh")
    assert host.links == {"data": "/scratch/sets", "a/b": "~/c"}
    assert host.launcher == "slurm"
    assert host.slurm == {"partition": "a100", "time": "1:30:00", "lines": ("--exclusive",)}


@pytest.mark.parametrize(
    ("lines", "field", "value"),
    [
        (["ansible_ssh_host: x"], "address", "x"),
        (["ansible_ssh_host: x", "ansible_host: y"], "address", "x"),
        (["ansible_ssh_port: 5"], "port", 5),
        (["ansible_ssh_user: bob"], "user", "bob"),
        (["ansible_user: 1001"], "user", "1001"),
        (["ansible_private_key_file: /k"], "identity_file", Path("/k")),
        (["ansible_connection: local"], "connection", "local"),
        (["ansible_connection: ansible.builtin.ssh"], "connection", "ssh"),
        (["ansible_python_interpreter: auto_silent"], "ansible_python", None),
        (["clusterddp_nproc: auto"], "nproc", None),
        (["ansible_connection: local"], "warm", 0),
        (["ansible_connection: local", "clusterddp_warm: 5m"], "warm", 300),
        (["clusterddp_warm: 0"], "keeps_warm", False),
        (["clusterddp_stall: 10m"], "stall", 600.0),
        ([], "preload", ()),
        (
            ["clusterddp_preload: [transformers.trainer, scikit-learn, _x, transformers.trainer]"],
            "preload",
            ("transformers.trainer", "scikit-learn", "_x"),
        ),
        (["clusterddp_preload: []"], "preload", ()),
        (["clusterddp_fork_server: false"], "keeps_warm", False),
        (["clusterddp_fork_server: 'No'"], "fork_server", False),
        (["clusterddp_fork_server: 'true'"], "fork_server", True),
        (["clusterddp_launcher: slurm"], "keeps_warm", False),
        (["clusterddp_gpus: 8"], "gpus", 8),
        (["clusterddp_gpus: 0"], "gpus", 0),
        (["clusterddp_gpus: 0,2"], "gpus", ("0", "2")),
        (["clusterddp_gpus: all"], "gpus", None),
        (["clusterddp_ports: 30000-30010"], "ports", (30000, 30010)),
        (["clusterddp_python:"], "python", None),
        (["clusterddp_setup: conda activate x"], "setup", ("conda activate x",)),
    ],
)
def test_aliases_and_other_ways_to_write_a_value(inventory: Path, lines: list[str], field: str, value: object) -> None:
    assert getattr(_one(inventory, *lines).hosts[0], field) == value


def test_env_and_secrets_are_joined_over_groups_and_the_host_wins(inventory: Path) -> None:
    (inventory.parent / "group_vars").mkdir()
    (inventory.parent / "group_vars" / "gpu.yml").write_text("clusterddp_env: {B: file, C: file}\n")
    text = """
all:
  vars: {clusterddp_env: {A: all, B: all, D: all}, clusterddp_secrets: [S1]}
  children:
    gpu:
      vars: {clusterddp_env: {B: gpu}, clusterddp_secrets: [S2, S1]}
      hosts:
        h: {clusterddp_env: {C: host}}
"""
    host = _load(inventory, text).hosts[0]
    assert host.env == {"A": "all", "B": "file", "C": "host", "D": "all"}
    assert host.secrets == ("S1", "S2")
    assert host.vars["clusterddp_env"] == {"C": "host"}  # as Ansible has it


def test_env_values_reach_the_job_as_they_are_written(inventory: Path) -> None:
    host = _one(inventory, "clusterddp_env: {A: 0010, B: 3.10, C: yes, D: '', E: 1:30, F: 'a  b'}").hosts[0]
    assert host.env == {"A": "0010", "B": "3.10", "C": "yes", "D": "", "E": "1:30", "F": "a  b"}


def test_tags_and_jinja_are_left_alone_where_we_do_not_look(inventory: Path) -> None:
    loaded = _one(inventory, 'other: "{{ x }}"', "ansible_become_password: !vault abc", "list: [!unsafe '{{ y }}']")
    assert loaded.hosts[0].vars["other"] == "{{ x }}"
    assert loaded.notices == ()


def test_a_host_without_a_role_is_not_judged(inventory: Path) -> None:
    text = "all:\n  hosts:\n    win:\n      clusterddp_role: none\n      ansible_connection: winrm\n    gpu:\n"
    loaded = _load(inventory, text)
    assert names(loaded.nodes) == ("gpu",)
    assert len(loaded.notices) == 1
    assert f"{inventory}:5:ansible_connection" in loaded.notices[0]


def test_what_is_odd_but_harmless_is_a_notice_with_its_place(inventory: Path) -> None:
    text = "all:\n  hosts:\n    a: {x: 1, x: 2}\n    b:\n  vars: {ansible_ssh_args: -C}\n  child: {c: }\n"
    notices = _load(inventory, text).notices
    assert [notice.partition(": ")[0] for notice in notices] == [
        f"{inventory}:3:x",
        f"{inventory}:6:child",
        f"{inventory}:5:ansible_ssh_args",
    ]
    assert "first at line 3" in notices[0]
    assert "did you mean 'children'" in notices[1]


def test_nodes_and_spares_come_in_inventory_order(inventory: Path) -> None:
    text = """
all:
  hosts: {c: , b: {clusterddp_role: spare}, a: , l: {clusterddp_role: login}, n: {clusterddp_role: none}}
"""
    loaded = _load(inventory, text)
    assert names(loaded.nodes) == ("c", "a")
    assert [host.name for host in loaded.spares] == ["b"]
    assert loaded.groups["all"] == ("c", "b", "a", "l", "n")


def test_a_limit_keeps_inventory_order_and_narrows_groups(inventory: Path) -> None:
    loaded = _load(inventory, "gpu: {hosts: {'gpu[1:4]': }}\nweb: {hosts: {web1: , gpu4: }}\n")
    limited = loaded.limit("web1:gpu4:gpu2")
    assert [host.name for host in limited.hosts] == ["gpu2", "gpu4", "web1"]
    assert limited.groups["gpu"] == ("gpu2", "gpu4")
    assert names(limited.limit("gpu[1]").nodes) == ("gpu4",)


def test_a_limit_file_names_one_pattern_a_line(inventory: Path) -> None:
    limit = inventory.parent / "retry"
    limit.write_text("gpu1\n\ngpu3\n")
    loaded = _load(inventory, "gpu: {hosts: {'gpu[1:4]': }}\n")
    assert names(loaded.limit(f"@{limit}").nodes) == ("gpu1", "gpu3")
    with pytest.raises(InventoryError, match="cannot be read"):
        loaded.limit("@/no/such/file")


def test_a_range_with_leading_zeros_is_of_names_also_behind_a_groups_name(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("all: {children: {gpu: {hosts: {'gpu[01:06]': }}, n: {hosts: {'n[1:6]': }}}}\n")
    loaded = load(path)
    by_name = loaded.limit("gpu[02:03]")
    assert names(by_name.nodes) == ("gpu02", "gpu03")
    assert by_name.notices == (
        "limit 'gpu[02:03]': 'gpu[02:03]' is gpu02, gpu03, by name; by their places in the group it were gpu03, gpu04",
    )
    by_place = loaded.limit("n[2:3]")
    assert names(by_place.nodes) == ("n3", "n4")
    assert by_place.notices == (
        "limit 'n[2:3]': 'n[2:3]' is n3, n4, by their places in the group; by name it were n2, n3",
    )


def test_a_limit_that_selects_nothing_names_what_there_is(inventory: Path) -> None:
    loaded = _load(inventory, "gpu: {hosts: {gpu1: }}\nempty: {}\n")
    with pytest.raises(
        InventoryError, match=r"selects no host; groups are all, ungrouped, gpu, empty; hosts are gpu1$"
    ):
        loaded.limit("web")
    with pytest.raises(InventoryError, match="group 'empty' has no hosts"):
        loaded.limit("empty")
    with pytest.raises(InventoryError, match="not a regular expression"):
        loaded.limit("~(")
    with pytest.raises(InventoryError, match="asks for a host that is not there: gpu has 1"):
        loaded.limit("gpu[3]")
    with pytest.raises(InventoryError, match="no name behind it"):
        loaded.limit("!")


def test_a_name_given_in_vain_beside_others_is_a_notice(inventory: Path) -> None:
    loaded = _load(inventory, "gpu: {hosts: {'gpu[01:03]': }}\n")
    assert loaded.limit("gpu01,gpu2").notices == (
        "limit 'gpu01,gpu2': 'gpu2' matches no host or group (did you mean gpu02?)",
    )


def test_hosts_json_hides_secrets_and_shows_paths_and_names(inventory: Path) -> None:
    loaded = _one(
        inventory,
        "ansible_password: hunter2",
        "ansible_become_pass: hunter2",
        "ansible_ssh_private_key_file: /keys/id",
        "api_token: hunter2",
        "ansible_host_key_checking: false",
        "clusterddp_env: {WANDB_API_KEY: hunter2, MODE: fast}",
        "clusterddp_secrets: [HF_TOKEN]",
        "deep: [{aws: {secret_access_key: hunter2}}]",
        'private_key_file: "-----BEGIN\\nhunter2"',
    )
    shown = loaded.to_json()[0]["vars"]
    assert "hunter2" not in json.dumps(shown)
    assert shown["clusterddp_env"] == {"WANDB_API_KEY": "********", "MODE": "fast"}
    assert shown["clusterddp_secrets"] == ["HF_TOKEN"]
    assert shown["ansible_ssh_private_key_file"] == "/keys/id"
    assert shown["ansible_host_key_checking"] is False
    assert "hunter2" not in repr(loaded)


def test_hosts_json_has_the_promised_fields(inventory: Path) -> None:
    loaded = _load(inventory, "top: {children: {low: {hosts: {h: {ansible_host: x, ansible_port: 5, a: 1}}}}}\n")
    assert loaded.to_json() == [
        {
            "name": "h",
            "address": "x",
            "port": 5,
            "user": None,
            "groups": ["low", "top"],
            "vars": {"ansible_host": "x", "ansible_port": 5, "a": 1},
        }
    ]


def test_an_entry_can_be_taken_apart_as_any_dataclass(inventory: Path) -> None:
    host = _one(inventory, "a: {b: [{c: 1}]}").hosts[0]
    assert dataclasses.asdict(host)["vars"] == {"a": {"b": [{"c": 1}]}}


def test_the_built_in_inventory_is_two_nodes_on_this_machine() -> None:
    local = built_in()
    assert local.path is None
    assert names(local.nodes) == ("local0", "local1")
    assert {host.connection for host in local.hosts} == {"local"}
    assert not any(host.keeps_warm for host in local.hosts)
    assert any(path == INVENTORIES / "local.yaml" for path in _LOCAL_PATHS)


@pytest.mark.parametrize("path", sorted(INVENTORIES.glob("*.yaml")), ids=lambda path: path.name)
def test_each_example_inventory_loads_without_a_notice_and_is_commented(path: Path) -> None:
    assert load(path).notices == ()
    assert path.read_text().startswith("# ")


def test_the_four_promised_examples_are_there() -> None:
    names = {path.name for path in INVENTORIES.glob("*.yaml")}
    assert names >= {"local.yaml", "two-node.yaml", "heterogeneous.yaml", "with-jump-host.yaml"}


def test_a_pattern_of_another_option_is_refused_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "i.yaml").write_text("all: {hosts: {'gpu[00:03]': }}\n", encoding="utf-8")
    assert load(tmp_path / "i.yaml").matching("gpu0[1:2]", "--host") == ["gpu01", "gpu02"]
    with pytest.raises(InventoryError, match=r"^--host: 'nope' selects no host; groups are"):
        load(tmp_path / "i.yaml").matching("nope", "--host")


def test_a_range_that_would_mean_places_in_a_group_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "i.yaml").write_text("all: {children: {gpu: {hosts: {'gpu[1:5]': }}}}\n", encoding="utf-8")
    assert load(tmp_path / "i.yaml").pattern_without(["gpu2", "gpu3", "gpu4"]) == "all:!gpu2:!gpu3:!gpu4"


@pytest.mark.parametrize(
    ("limit", "gone", "pattern"),
    [
        ("", ["gpu01"], "all:!gpu01"),
        ("gpu0*", ["gpu01", "gpu03"], "gpu0*:!gpu01:!gpu03"),
        ("gpu00,gpu01", ["gpu01"], "gpu00,gpu01,!gpu01"),
        ("", ["gpu00", "gpu01", "gpu02"], "all:!gpu[00:02]"),
        ("gpu*", ["gpu01", "gpu02", "gpu03"], "gpu*:!gpu[01:03]"),
        ("gpu00,gpu[01:03]", ["gpu00", "gpu01", "gpu02"], "gpu00,gpu[01:03],!gpu[00:02]"),
        ("", ["gpu00", "gpu01", "gpu02", "::1"], "all,!gpu[00:02],!::1"),
        ("", ["::1"], "all,!::1"),
        ("gpu01:gpu02", ["gpu01"], "gpu01:gpu02:!gpu01"),
        ("gpu*:all", ["::1"], "gpu00,gpu01,gpu02,gpu03,login"),
        ("gpu00,gpu01", ["gpu00", "gpu01"], ""),
        ("", ["gpu00", "gpu01", "gpu02", "gpu03", "::1"], ""),
    ],
)
def test_the_pattern_that_goes_on_without_hosts_selects_the_others(
    tmp_path: Path, limit: str, gone: list[str], pattern: str
) -> None:
    (tmp_path / "i.yaml").write_text(
        "all: {hosts: {'gpu[00:03]': , '::1': , login: {clusterddp_role: login}}}\n", encoding="utf-8"
    )
    whole = load(tmp_path / "i.yaml")
    inventory = whole.limit(limit) if limit else whole
    found = inventory.pattern_without(gone)
    assert found == pattern
    if found:
        left = [host.name for host in inventory.hosts if host.name not in gone]
        assert [host.name for host in whole.limit(found).hosts] == left


def test_a_connection_variable_with_a_wrong_letter_is_named(tmp_path: Path) -> None:
    inventory = tmp_path / "i.yaml"
    inventory.write_text(
        "all: {hosts: {a: {ansible_hots: b, ansible_hosts: [b], ansible_become: true, clusterdb_x: 1}}}\n"
    )
    (notice,) = load(inventory).notices
    assert notice.endswith(
        "ansible_hots: no variable of Ansible's, so it does nothing here; did you mean ansible_host?"
    )
