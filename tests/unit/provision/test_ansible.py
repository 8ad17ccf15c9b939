"""The command line given to ansible-playbook, and what is said without it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.cli.playbook import PlaybookCLI  # type: ignore[import-untyped]

from clusterddp.checks.model import CheckResult
from clusterddp.cli.fix import repairs
from clusterddp.errors import ClusterddpError, UsageError
from clusterddp.inventory import built_in, load
from clusterddp.provision import ansible
from clusterddp.provision.playbooks import NAMES, find_playbook, own_playbook

INVENTORY = "all: {hosts: {a: {}, b: {}}, vars: {ansible_user: alice}}\n"


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY)
    return path


def argv(inventory: Path, *arguments: str, hosts: tuple[str, ...] = ()) -> list[str]:
    loaded = load(inventory)
    return ansible.playbook_argv(Path("p.yml"), ansible.source_of(loaded), loaded, arguments, hosts=hosts)[1:]


def parsed_user(words: list[str]) -> object:
    """The user that Ansible itself reads of such a command line."""
    own = PlaybookCLI(["ansible-playbook"])
    own.init_parser()
    return own.parser.parse_args(["p.yml", *words]).remote_user


def test_the_users_arguments_stand_last(inventory: Path) -> None:
    assert argv(inventory, "-K", "--check") == ["-i", str(inventory), "p.yml", "-K", "--check"]
    assert argv(inventory, hosts=("a", "b")) == ["-i", str(inventory), "--limit", "a,b", "p.yml"]


@pytest.mark.parametrize("name", ["@hosts", "~.*", "!a", "a,b", "a:b", "gpu*", "gpu[0]"])
def test_a_host_whose_name_ansible_reads_as_a_pattern_is_refused(inventory: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"Ansible would read the host name .* as a pattern; name the host plainly"):
        argv(inventory, hosts=("a", name))


@pytest.mark.parametrize(
    "line",
    [
        *("-u root", "--user root", "--user=root", "-uroot", "-u=root", "-bu root", "-bKvvvuroot", "--use root"),
        *("--us=root", "--u root", "-u alice -u root"),
    ],
)
def test_a_user_that_is_given_wins_over_the_inventorys(inventory: Path, line: str) -> None:
    """However Ansible lets it be written."""
    own, words = ["-e", "ansible_user=root", "-e", "login_user=alice"], line.split()
    assert argv(inventory, *words) == ["-i", str(inventory), *own, "p.yml", *words]
    assert parsed_user(words) == "root"


@pytest.mark.parametrize("line", ["-tu", "-eu=1", "--become-user root", "-b --start-at-task u"])
def test_what_is_no_user_leaves_the_inventorys(inventory: Path, line: str) -> None:
    assert argv(inventory, *line.split()) == ["-i", str(inventory), "p.yml", *line.split()]
    assert parsed_user(line.split()) is None


def test_a_playbook_needs_an_inventory_file() -> None:
    with pytest.raises(UsageError, match=r"a playbook needs an inventory file; `clusterddp up INVENTORY`"):
        ansible.source_of(built_in())


def test_without_ansible_the_line_that_installs_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(
        ClusterddpError, match=r"ansible-playbook is not installed; `pip install ansible-core` brings it"
    ):
        ansible.program("ansible-playbook")


def test_a_playbook_is_a_file_or_one_of_ours(tmp_path: Path) -> None:
    own = tmp_path / "mine.yml"
    own.write_text("")
    assert find_playbook(str(own)) == own
    assert all(find_playbook(name).is_file() for name in NAMES)
    with pytest.raises(UsageError, match=r"there is no playbook host\.yml; give a file, or one of ours: hosts\.yml"):
        find_playbook("host.yml")


def test_a_file_of_the_name_of_a_playbook_of_ours_is_given_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"there is no playbook \./hosts\.yml; give a file, or one of ours: hosts"):
        find_playbook("./hosts.yml")
    Path("hosts.yml").touch()
    assert find_playbook("hosts.yml") == own_playbook("hosts.yml")
    assert find_playbook("./hosts.yml") == Path("hosts.yml")


def test_what_a_playbook_mends_is_gathered_by_playbook_and_check() -> None:
    def result(name: str, playbook: str, *hosts: str) -> CheckResult:
        return CheckResult(name=name, category="", verdict="fail", hosts=hosts, message="", playbook=playbook)

    results = [
        result("helper", "python.yml", "c"), result("shm", "hosts.yml", "a"), result("shm", "hosts.yml", "b", "a"),
        result("disk", "", "a"),
    ]  # fmt: skip
    assert repairs(results) == {"hosts.yml": {"shm": ["a", "b"]}, "python.yml": {"helper": ["c"]}}
    assert list(repairs(results)) == ["hosts.yml", "python.yml"]


def test_an_ansible_cfg_of_a_folder_is_taken_only_beside_a_named_inventory(
    inventory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, home = tmp_path / "clone", tmp_path / "home"
    for folder in (clone, home, clone / ".clusterddp"):
        folder.mkdir()
    (clone / "ansible.cfg").write_text("[defaults]\ncallback_plugins = ./evil\n")
    (clone / "own.yaml").write_text(INVENTORY)
    monkeypatch.chdir(clone)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    above = Path("..", os.path.relpath(inventory, tmp_path))
    assert above.samefile(inventory)
    for path in (inventory, above, clone / ".clusterddp" / "inventory.yaml"):
        assert ansible.environment(path)["ANSIBLE_CONFIG"] in {str(ansible._EMPTY_CONFIG), "/etc/ansible/ansible.cfg"}
        assert "ANSIBLE_CONFIG=ansible.cfg gives it" in ansible.config_notice(path)
    (home / ".ansible.cfg").touch()
    assert ansible.environment(inventory)["ANSIBLE_CONFIG"] == str(home / ".ansible.cfg")
    assert "ANSIBLE_CONFIG" not in ansible.environment(clone / "own.yaml")
    (clone / "link.yaml").symlink_to(inventory)
    for name in ("own.yaml", "link.yaml"):
        assert not ansible.config_notice(Path(name))
    monkeypatch.setenv("ANSIBLE_CONFIG", "ansible.cfg")
    assert ansible.environment(inventory)["ANSIBLE_CONFIG"] == "ansible.cfg"
    monkeypatch.delenv("ANSIBLE_CONFIG")
    (clone / "ansible.cfg").unlink()
    assert "ANSIBLE_CONFIG" not in ansible.environment(inventory)


def test_an_ansible_cfg_in_a_home_that_may_not_be_searched_is_none(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(ansible, "config_notice", lambda _: "not used")
    monkeypatch.setattr(os, "stat", refuse)
    given = ansible.environment(inventory)
    monkeypatch.undo()
    assert given["ANSIBLE_CONFIG"] == str(ansible._EMPTY_CONFIG)


def test_ansible_takes_the_configuration_that_sets_nothing(inventory: Path) -> None:
    argv = [ansible.program("ansible-inventory"), "-i", str(inventory), "--list"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ansible._EMPTY_CONFIG)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
