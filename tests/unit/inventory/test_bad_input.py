"""What an inventory must not be: one line that names file, line, key, the value and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import EXIT_USAGE, InventoryError
from clusterddp.inventory import ForeignInventory, load

if TYPE_CHECKING:
    from pathlib import Path

# (the file, where after the file's path, words of the message)
STRUCTURE = [
    ("", ":1", "is empty"),
    ("# only a comment\n", ":1", "is empty"),
    ("[1, 2]\n", ":1", "must be a mapping of groups"),
    ("all:\n  children:\n    gpu:\n", ":1", "holds no host"),
    ("gpu:\n  host:\n    gpu01:\n", ":1", "did you mean 'hosts'?"),
    ("all:\n  hosts:\n    - gpu01\n", ":2:hosts", "must be a mapping, got a list"),
    ("all:\n  hosts:\n    gpu01: 5\n", ":3:gpu01", "must be a mapping, got 5"),
    ("all: [a]\n", ":1:all", "must be a mapping, got a list"),
    ("all:\n  hosts:\n    12:\n", ":3:12", "is not text"),
    ("12:\n  hosts:\n    a:\n", ":1:12", "group name 12 is not text"),
    ("all:\n  hosts: {a: }\n  hosts: {b: }\n", ":3:hosts", "given twice, first at line 2"),
    ("all:\n  hosts:\n    a:\n    b:\n    a:\n", ":5:a", "host 'a' is given twice, first at line 3"),
    ("g:\n  hosts: {a: }\ng:\n  hosts: {b: }\n", ":3:g", "group 'g' is given twice"),
    ("all:\n  children:\n    g:\n    g:\n  hosts: {a: }\n", ":4:g", "group 'g' is given twice"),
    ("g:\n  children:\n    h:\n      children:\n        g:\n  hosts: {a: }\n", ":3:h", "its own child"),
    ("g:\n  hosts: {a: }\n  children:\n    all:\n", "", "its own child"),
    ("all:\n  hosts:\n\ta:\n", ":3:1", "is not YAML"),
    ("all:\n  hosts: {a: {x: {{ y }}}}\n", ":2:", "is not YAML"),
    ("all:\n  hosts: {a: {x: !ruby/object 5}}\n", ":2:", "is not YAML"),
    ("all:\n  hosts: {a: &a {x: *a}}\n", ":2:", "contains itself"),
    ("all:\n  hosts: {a: {x: 2024-13-45}}\n", ":2:", "2024-13-45"),
    ("all:\n  hosts: {a: {x: !!bool maybe}}\n", ":2:", "'maybe' is not a value of its kind"),
    ("all:\n  hosts: {a: {x: !!int ''}}\n", ":2:", "'' is not a value of its kind"),
    ("all:\n  hosts: {a: {x: !!float ''}}\n", ":2:", "'' is not a value of its kind"),
    ("all:\n  hosts: {a: {x: !!timestamp foo}}\n", ":2:", "'foo' is not a value of its kind"),
]
NAMES = [
    ("-gpu01", "begins with -"),
    ("-oProxyCommand=x", "begins with -"),
    ("''", "is empty"),
    ("'gpu 01'", "a space or a control character"),
    ('"gpu\\t01"', "a space or a control character"),
    ('"gpu\\e2J"', "a space or a control character"),
    ("../gpu01", "not fit to be a folder's name"),
    ("gpu/01", "not fit to be a folder's name"),
    ("gpu..01", "not fit to be a folder's name"),
    ("gpu01:x", "with or without a port"),
    ("gpu01:22:33", "with or without a port"),
    ("a" * 201, "longer than 200 bytes"),
]
RANGES = [
    ("gpu[1:0]", "is empty: it begins after its end"),
    ("gpu[c:a]", "is empty: it begins after its end"),
    ("gpu[01:3]", "different width"),
    ("gpu[1:]", "has no last value"),
    ("gpu[1]", "is not first:last"),
    ("gpu[1:2:3:4]", "is not first:last"),
    ("gpu[1:4:0]", "needs a step of 1 or more"),
    ("gpu[4:1:-1]", "needs a step of 1 or more"),
    ("gpu[a:5]", "neither two numbers nor two single letters"),
    ("gpu[aa:cc]", "neither two numbers nor two single letters"),
    ("gpu[1:2", "unmatched brackets"),
    ("gpu1:2]", "unmatched brackets"),
    ("gpu[1:1000000000]", "more than 100000 hosts"),
    ("'[fe80::1]'", "has no last value"),
]
VARIABLES = [
    ("ansible_port: 0", "must be a port from 1 to 65535, got 0"),
    ("ansible_port: ssh", "got 'ssh'"),
    ("ansible_port: true", "got True"),
    ("ansible_user: -l", "begins with -"),
    ("ansible_user: a b", "a space or a control character"),
    ("ansible_user: [a]", "is not text"),
    ("ansible_host: -x", "begins with -"),
    ("ansible_host: ''", "is empty"),
    ("ansible_host: alice@gpu01", "put the user into ansible_user"),
    ("ansible_connection: winrm", "clusterddp_role: none"),
    ("ansible_ssh_common_args: -o 'x", "No closing quotation"),
    ("ansible_python_interpreter: /usr/bin/env python3", "must be one program"),
    ('ansible_python_interpreter: "/usr/bin/python3\\nrm"', "one line"),
    ("ansible_ssh_private_key_file: ~nobody-like-this/key", "home folder is not known"),
    ("clusterddp_role: nodes", "did you mean node?"),
    ("clusterddp_role: gpu", "must be node, spare, login or none, got 'gpu'"),
    ("clusterddp_nproc: 0", "auto or a number from 1"),
    ("clusterddp_nproc: 2.5", "got 2.5"),
    ("clusterddp_gpus: -1", "a count, or a list"),
    ("clusterddp_gpus: [0, 0]", "a count, or a list"),
    ("clusterddp_gpus: [first]", "a count, or a list"),
    ("clusterddp_gpus: []", "a count, or a list"),
    ("clusterddp_env: [A]", "must be a mapping of names to values"),
    ("clusterddp_env: {1A: x}", "no name of an environment variable"),
    ("clusterddp_env: {A: }", "A in clusterddp_env must be text"),
    ("clusterddp_env: {A: [1]}", "A in clusterddp_env must be text"),
    ("clusterddp_env: {A: 1, A: 2}", "variable 'A' is given twice"),
    ("clusterddp_secrets: TOKEN", "must be a list of names"),
    ("clusterddp_secrets: ['A=hunter2']", "no name of an environment variable"),
    ("clusterddp_address: http://x", "is not a host name or IP address"),
    ("clusterddp_interface: eth0 eth1", "network interface's name"),
    ("clusterddp_ports: 29499-29400", "a first and a last port"),
    ("clusterddp_ports: 29400", "a first and a last port"),
    ("clusterddp_ports: 0-70000", "a first and a last port"),
    *(
        (f"clusterddp_links: {value}", "a mapping of names below the workdir to paths")
        for value in (
            "data",
            "[data]",
            "{data: rel}",
            "{../x: /y}",
            "{/x: /y}",
            "{x: /y/../z}",
            "{x: /$USER}",
            "{7: /x}",
        )
    ),
    *(
        (f"clusterddp_preload: {value}", "a list of modules or distributions")
        for value in ("transformers", "{a: b}", "[a, 5]", "['a b']", "['-a']", "[a..b]", "['../x']", "[a/b]", "['']")
    ),
    *((f"clusterddp_comm_trace: {value}", "must be true or false") for value in ("maybe", "0", "[true]", "''")),
    ("clusterddp_workdir: relative/path", "a folder below / or ~/"),
    ("clusterddp_workdir: /scratch/$USER", "without $"),
    ("clusterddp_workdir: ~/", "a folder below"),
    ("clusterddp_workdir: /", "a folder below"),
    ("clusterddp_state: /var/../etc", "without $ and .."),
    ("clusterddp_transport: fabrik", "did you mean fabric?"),
    ("clusterddp_launcher: pbs", "must be ssh or slurm"),
    ("clusterddp_setup: {a: b}", "text, or a list of texts"),
    ("clusterddp_setup: [a, 5]", "text, or a list of texts"),
    ("clusterddp_python: python -u", "must be one program"),
    ("clusterddp_python: -c", "must be one program"),
    ("clusterddp_nprocs: 2", "did you mean clusterddp_nproc?"),
    ("clusterdp_nproc: 2", "did you mean clusterddp_nproc?"),
    ("clutserddp_gpus: 2", "did you mean clusterddp_gpus?"),
    ("clusterddp-env: 2", "did you mean clusterddp_env?"),
    ("clusterdp_zzz: 2", "known are clusterddp_address"),
    ("clusterddp_zzz: 2", "known are clusterddp_address"),
    ("clusterddp_container: x", "reserved for a later version"),
    ("clusterddp_container: x", "reserved for a later version"),
    ("clusterddp_sync: x", "reserved for a later version"),
    ("clusterddp_requirements: x", "reserved for a later version"),
    ('ansible_user: "{{ me }}"', "a Jinja template"),
    ('clusterddp_env: {A: "{{ me }}"}', "a Jinja template"),
    ('clusterddp_setup: [a, "{% if x %}"]', "a Jinja template"),
    ("ansible_user: !vault abc", "(!vault); `clusterddp up` with this inventory has ansible-vault decrypt it"),
    ("clusterddp_env: {A: !unsafe abc}", "!unsafe"),
]
CONTAINERS = [
    "docker run --rm image python train.py",
    "exec docker exec -it box bash",
    "module load podman && podman run image",
    "sudo /usr/bin/docker --context far run image",
    "apptainer exec --nv image.sif bash",
    "singularity run image.sif",
    "enroot start image",
    "nerdctl run image",
    "alias python='docker run image python'",
]


def _load(folder: Path, text: str) -> InventoryError:
    path = folder / "inventory.yaml"
    path.write_text(text)
    with pytest.raises(InventoryError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(("text", "where", "words"), STRUCTURE)
def test_wrong_structure_is_an_error_with_its_place(tmp_path: Path, text: str, where: str, words: str) -> None:
    error = _load(tmp_path, text)
    assert error.where.startswith(f"{tmp_path / 'inventory.yaml'}{where}")
    assert words in str(error)


@pytest.mark.parametrize(("name", "words"), NAMES)
def test_a_host_name_that_could_do_harm_is_refused(tmp_path: Path, name: str, words: str) -> None:
    error = _load(tmp_path, f"all:\n  hosts:\n    {name}:\n")
    assert error.where.startswith(f"{tmp_path / 'inventory.yaml'}:3:")
    assert words in str(error)


def test_a_user_before_a_hosts_name_is_no_part_of_its_address(tmp_path: Path) -> None:
    error = _load(tmp_path, "all:\n  hosts:\n    alice@gpu[01:02]:\n")
    assert error.where == f"{tmp_path / 'inventory.yaml'}:3:alice@gpu01"
    assert "address 'alice@gpu01' is not a host name or IP address; put the user into ansible_user" in str(error)
    path = tmp_path / "mended.yaml"
    path.write_text("all:\n  hosts:\n    a@b: {ansible_host: c}\n    a@l: {ansible_connection: local}\n")
    assert [host.address for host in load(path).hosts] == ["c", "a@l"]


@pytest.mark.parametrize(("name", "words"), RANGES)
def test_a_bad_range_is_an_error_with_its_place_and_the_way_to_write_it(tmp_path: Path, name: str, words: str) -> None:
    error = _load(tmp_path, f"all:\n  hosts:\n    {name}:\n")
    assert error.where == f"{tmp_path / 'inventory.yaml'}:3:{name.strip(chr(39))}"
    assert words in str(error)
    assert "gpu[01:16]" in str(error) or words.startswith("more than")


@pytest.mark.parametrize(("line", "words"), VARIABLES)
def test_a_value_we_cannot_use_is_an_error_with_file_line_and_key(tmp_path: Path, line: str, words: str) -> None:
    error = _load(tmp_path, f"all:\n  hosts:\n    h:\n  vars:\n    {line}\n")
    key = line.partition(":")[0]
    assert error.where in {f"{tmp_path / 'inventory.yaml'}:5:{name}" for name in (key, "A", "1A")}
    assert words in str(error)
    assert error.exit_code == EXIT_USAGE


@pytest.mark.parametrize("line", CONTAINERS)
def test_a_setup_line_that_starts_a_container_is_refused_with_the_reason(tmp_path: Path, line: str) -> None:
    error = _load(tmp_path, f"all:\n  hosts:\n    h:\n      clusterddp_setup:\n        - {line}\n")
    assert "would escape the proof that a run has ended" in str(error)


@pytest.mark.parametrize("program", ["docker run image python", "/usr/bin/apptainer", "singularity exec x.sif python"])
def test_an_interpreter_that_starts_a_container_is_refused(tmp_path: Path, program: str) -> None:
    error = _load(tmp_path, f"all:\n  hosts:\n    h:\n      clusterddp_python: {program}\n")
    assert "starts a container" in str(error)


def test_an_error_in_a_vars_file_names_that_file(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "gpu.yml").write_text("# comment\nclusterddp_npoc: 1\n")
    error = _load(tmp_path, "gpu:\n  hosts:\n    h:\n")
    assert error.where == f"{tmp_path}/group_vars/gpu.yml:2:clusterddp_npoc"
    assert "did you mean clusterddp_nproc?" in str(error)


def test_a_vars_file_that_is_no_mapping_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "host_vars").mkdir()
    (tmp_path / "host_vars" / "h").write_text("- a\n")
    assert "mapping of variables" in str(_load(tmp_path, "gpu:\n  hosts:\n    h:\n"))


def test_the_value_of_a_secret_is_never_in_an_error(tmp_path: Path) -> None:
    for value in ("['A=hunter2']", "hunter2", "{hunter2: 1}"):
        assert "hunter" not in str(_load(tmp_path, f"all:\n  hosts:\n    h:\n      clusterddp_secrets: {value}\n"))
    assert "hunter" not in str(_load(tmp_path, "all:\n  hosts:\n    h:\n      clusterddp_env: {A: [hunter2]}\n"))


@pytest.mark.parametrize("name", ["absent.yaml", "folder"])
def test_a_missing_file_and_a_folder_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InventoryError, match=name):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "target"),
    [
        ("hosts.ini", "[gpu]\ngpu01\n", "hosts.yaml"),
        ("hosts", "[gpu]\ngpu01 ansible_port=22\n", "hosts.yaml"),
        ("hosts", "gpu01\ngpu02\n", "hosts.yaml"),
        ("hosts.yaml", "# old\n[gpu]\ngpu01 ansible_host=x\n", "hosts-static.yaml"),
        ("cloud.yaml", "plugin: aws_ec2\n", "cloud-static.yaml"),
        ("hosts.py", "#!/usr/bin/env python3\n", "hosts.yaml"),
        ("hosts.toml", "[gpu.hosts]\na = {}\n", "hosts.yaml"),
    ],
)
def test_other_kinds_of_inventory_get_the_line_that_converts_them(
    tmp_path: Path, name: str, text: str, target: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InventoryError) as caught:
        load(path)
    by_hand = f"convert it: `ansible-inventory -i {path} --list --yaml --output {tmp_path / target}`"
    assert caught.value.remedy == f"`clusterddp up {path}` does so once; or {by_hand}"


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("hostfile", "gpu01 slots=8\ngpu02 slots=4\n", "a host file with numbers of processes"),
        ("hostfile", "gpu01 slots=64 max_slots=64  # c\r\n\r\n", "a host file with numbers of processes"),
        ("hostfile", "gpu01 slots=8  # was ansible_host=10.0.0.1\n", "a host file with numbers of processes"),
        ("hosts", "gpu01:8\ngpu02:8\n", "a host file with numbers of processes"),
        ("hosts", "gpu01:8,gpu02:8\n", "a host file with numbers of processes"),
        ("hosts.txt", "gpu01\nalice@gpu02\n", "a host file"),
        ("config", "Host gpu01\n  HostName 10.0.0.1\nHost *\n  ProxyCommand nc: %h\n", "an ssh_config"),
        ("slurm.conf", "ClusterName=x\nNodeName=gpu[00-01] CPUs=64\n", "a slurm.conf"),
    ],
)
def test_what_init_reads_is_not_handed_to_ansible_which_would_misread_it(
    tmp_path: Path, name: str, text: str, kind: str
) -> None:
    path = tmp_path / name
    path.write_text(text, newline="")
    with pytest.raises(InventoryError) as caught:
        load(path)
    assert not isinstance(caught.value, ForeignInventory)
    assert str(caught.value) == f"{path}: is {kind}, no inventory; `clusterddp init {path}` makes one of it"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hosts", "gpu01:2222\ngpu02:2222  # no slots=\n"),
        ("hosts", "[gpu]\ngpu01 slots=8\n"),
        ("hosts", "host ansible_host=10.0.0.1\n"),
        ("hosts.txt", "gpu01 ansible_host=10.0.0.1 slots=8\n"),
    ],
)
def test_an_ini_inventory_is_no_host_file(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ForeignInventory, match="is an INI inventory"):
        load(path)


def test_text_that_is_not_utf8_and_an_encrypted_inventory_are_named(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_bytes(b"all: {hosts: {h\xff: }}")
    with pytest.raises(InventoryError, match="UTF-8"):
        load(path)
    error = _load(tmp_path, "$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    assert f"{path}: is encrypted with ansible-vault; `clusterddp up {path}` has" in str(error)


@pytest.mark.parametrize("name", ["group_vars/all", "host_vars/a.yml"])
def test_an_encrypted_file_of_variables_is_not_left_out(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    path.write_text("$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    error = _load(tmp_path, "all: {hosts: {a: }}")
    assert isinstance(error, ForeignInventory)
    inventory = tmp_path / "inventory.yaml"
    assert f"{path}: is encrypted with ansible-vault; `clusterddp up {inventory}` has" in str(error)
