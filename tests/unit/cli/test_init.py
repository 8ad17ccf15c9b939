"""`init`: an inventory from what is there, which loads."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from clusterddp.cli.main import main
from clusterddp.inventory import load
from tests.unit.cli_help import folder, said

__all__ = ["folder"]


def made(*argv: str) -> list[tuple[str, str | None, int | None, int | None]]:
    """Name, user, port and processes of each host of the inventory that was written."""
    with pytest.raises(SystemExit) as ended:
        main(["init", *argv])
    assert ended.value.code == 0
    return [(host.name, host.user, host.port, host.nproc) for host in load("inventory.yaml").hosts]


def plain(*names: str) -> list[tuple[str, None, None, None]]:
    return [(name, None, None, None) for name in names]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu01\n# the second\ngpu02  # here\n\n", ("gpu01", "gpu02")),
        ("gpu[01-03,07],login\n", ("gpu01", "gpu02", "gpu03", "gpu07", "login")),
        ("a[1-2]-ib\nb\n", ("a1-ib", "a2-ib", "b")),
        (
            "ClusterName=x\nNodeName=DEFAULT CPUs=2\nNodeName=gpu[00-01] CPUs=64\nNodeName=h Gres=gpu:8\n",
            ("gpu00", "gpu01", "h"),
        ),
    ],
)
def test_a_host_file_becomes_an_inventory_that_loads(text: str, names: tuple[str, ...]) -> None:
    Path("hosts").write_text(text)
    assert made("hosts") == plain(*names)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "text",
    [
        "a slots=8\nb slots=4 max-slots=8\nc\n",
        "a max_slots=9 slots=8\nb max-slots=4 4\nc max_slots=2",
        "a:8\nb:4\nc\n",
        "a 8\nb 4\nc",
        "a:8,b:4\nc\n",
        "a:8, b:4, c",
    ],
)
def test_slots_are_processes(text: str) -> None:
    Path("hostfile").write_text(text)
    assert made("hostfile") == [("a", None, None, 8), ("b", None, None, 4), ("c", None, None, None)]


@pytest.mark.usefixtures("folder")
def test_a_user_before_a_host_is_who_logs_in() -> None:
    Path("hostfile").write_text("alice@a slots=8\nbob@b\nalice@c,d\n")
    assert made("hostfile") == [
        ("a", "alice", None, 8),
        ("b", "bob", None, None),
        ("c", "alice", None, None),
        ("d", None, None, None),
    ]


@pytest.mark.usefixtures("folder")
def test_numbers_behind_all_hosts_that_are_no_port_are_processes_as_in_horovodrun(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert made("gpu01:4,10.0.0.2:21") == [("gpu01", None, None, 4), ("10.0.0.2", None, None, 21)]
    assert "# clusterddp_nproc is what the file calls slots" in Path("inventory.yaml").read_text()
    Path("inventory.yaml").unlink()
    for mixed in ("gpu01:4,gpu02:2222", "gpu01:4,gpu02", "alice@gpu01:4,gpu02:4"):
        code, lines = said(capsys, "init", mixed)
        assert code == 2
        assert "is 4 a number of processes, or a port?" in lines[-1]
    assert not Path("inventory.yaml").exists()


@pytest.mark.usefixtures("folder")
def test_a_host_list_and_an_ssh_config_become_inventories() -> None:
    assert made("alice@gpu01,gpu02:2222") == [("gpu01", "alice", None, None), ("gpu02", None, 2222, None)]
    Path("inventory.yaml").unlink()
    config = Path("home/.ssh/config")
    config.parent.mkdir(parents=True)
    config.write_text(
        "Host gpu01 gpu02\n  User alice\n  IdentityFile ~/%i\nHost *.org !x\nHost=gpu03 # third\nMatch all\n"
    )
    assert made() == plain("gpu01", "gpu02", "gpu03")


@pytest.mark.usefixtures("folder")
def test_a_host_list_may_be_longer_than_the_name_of_a_file() -> None:
    names = [f"gpu{number:03}" for number in range(60)]
    assert made(",".join(names)) == plain(*names)


@pytest.mark.usefixtures("folder")
def test_names_of_files_that_are_not_utf8_are_escaped_in_the_inventory() -> None:
    Path("h\udcff.txt").write_text("gpu01 slots=8\n")
    with pytest.raises(SystemExit) as ended:
        main(["init", "h\udcff.txt", "-o", "i\udcff.yaml"])
    text = Path("i\udcff.yaml").read_text()
    assert "from h\\xff.txt" in text
    assert "`clusterddp up 'i\\xff.yaml'`" in text
    assert ended.value.code == 0


@pytest.mark.usefixtures("folder")
def test_a_file_below_an_unknown_users_home_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = "~nobody-here/hosts: there is no such file; give a file, or hosts as a,b,c"
    assert said(capsys, "init", "~nobody-here/hosts") == (2, [wrong])


@pytest.mark.usefixtures("folder")
def test_an_allocation_is_taken_before_the_ssh_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    assert made() == plain("node1", "node2")
    assert "from SLURM_JOB_NODELIST" in Path("inventory.yaml").read_text()


@pytest.mark.usefixtures("folder")
def test_nothing_is_overwritten_and_what_names_no_host_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    remedy = "give host names, a host file, or an ssh_config: `clusterddp init gpu01,gpu02`"
    assert said(capsys, "init") == (2, [f"there is no ~/.ssh/config to take hosts from; {remedy}"])
    Path("hosts").write_text("gpu01\ngpu02 gets eight\n")
    wrong = "hosts: line 2: 'gpu02 gets eight' names no host; write gpu01, or gpu01 slots=8"
    assert said(capsys, "init", "hosts") == (2, [wrong])
    Path("hosts").write_text("gpu01 slots=4\ngpu02 slots=0\n")
    none = "gpu02 has 0 slots; write 1 or more, or leave the host out"
    assert said(capsys, "init", "hosts") == (2, [f"hosts: line 2: {none}"])
    assert said(capsys, "init", "gpu01:4,gpu02:0") == (2, [f"line 1: {none}"])
    Path("hosts").write_bytes(b"\xff\xfe")
    assert said(capsys, "init", "hosts") == (2, ["hosts: is no text; give a host file"])
    Path("hosts").write_text("\n")
    assert said(capsys, "init", "hosts")[0] == 2
    Path("inventory.yaml").write_text("mine")
    assert said(capsys, "init", "a") == (2, ["inventory.yaml is there already; name another: --output FILE"])
    assert Path("inventory.yaml").read_text() == "mine"


SSH_CONFIG = """
Host gpu0* !gpu03
  User alice   # of the cluster
Host gpu01 gpu02 gpu03
  HostName %h.example.org
  Port 2200
  User carol
  IdentityFile "~/.ssh/of cluster"
  ProxyJump bastion,eve@10.0.0.2:2222
Host bastion
  HostName 10.0.0.1
  User bob
  Port 2022
Match exec "touch ran"
  User nobody
Host *
  User last
"""


@pytest.mark.usefixtures("folder")
def test_an_ssh_config_is_known_by_its_text_and_keeps_how_hosts_are_reached(capsys: pytest.CaptureFixture[str]) -> None:
    Path("cluster.conf").write_text(SSH_CONFIG)
    assert made("cluster.conf") == [
        ("gpu01", "alice", 2200, None), ("gpu02", "alice", 2200, None), ("gpu03", "carol", 2200, None),
        ("bastion", "bob", 2022, None),
    ]  # fmt: skip
    first, *_, bastion = load("inventory.yaml").hosts
    assert (first.address, bastion.address) == ("gpu01.example.org", "10.0.0.1")
    assert first.identity_file == Path("~/.ssh/of cluster").expanduser()
    assert first.ssh_args == ("-o", "ProxyJump=bob@10.0.0.1:2022,eve@10.0.0.2:2222")
    assert "cluster.conf: Match not kept" in capsys.readouterr().err
    assert not Path("ran").exists()


JUMPS = """
Host b1
  HostName 10.0.0.1
  ProxyJump {}
Host b2
  HostName 10.0.0.2
  ProxyJump b1
  IdentityFile ~/.ssh/of_b2
Host gpu01
  ProxyJump alice@b2,b3
"""


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("jump", ["none", "b1", "alice@b2"])
def test_a_jump_host_is_reached_through_its_own_ones_and_its_key_is_told_to_be_lost(
    capsys: pytest.CaptureFixture[str], jump: str
) -> None:
    Path("c").write_text(JUMPS.format(jump))
    made("c")
    *_, last = load("inventory.yaml").hosts
    assert last.ssh_args == ("-o", "ProxyJump=10.0.0.1,alice@10.0.0.2,b3")
    assert "c: IdentityFile of jump host alice@b2" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_patterns_apply_to_jump_hosts_too() -> None:
    Path("c").write_text("Host gpu01\n ProxyJump jump.corp\nHost *.corp\n ProxyJump gate\nHost *\n User alice\n")
    made("c")
    (host,) = load("inventory.yaml").hosts
    assert (host.user, host.ssh_args) == ("alice", ("-o", "ProxyJump=alice@gate,alice@jump.corp"))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["home/.ssh/config", "other"])
def test_a_large_ssh_config_is_read_at_once(name: str) -> None:
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    names = [f"gpu{number:04}" for number in range(800)]
    file.write_text("".join(f"Host {name}\n ProxyJump gate\n" for name in names))
    began = time.process_time()
    assert len(made(name)) == 800
    assert time.process_time() - began < 10.0


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Port 99999", "Host a: Port 99999 is not from 1 to 65535"),
        ("User -oProxyCommand=x", "begins with -"),
        ("ProxyJump $(x)", "ProxyJump $(x) cannot be kept"),
        ("IdentityFile ~/%i", "IdentityFile ~/%i cannot be kept"),
    ],
)
def test_a_value_of_an_ssh_config_that_cannot_be_used_is_said(
    capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    Path("c").write_text(f"Host a\n {line}\n")
    code, lines = said(capsys, "init", "c")
    assert code == 2
    assert words in lines[-1]
    assert not Path("inventory.yaml").exists()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("text", ["Host gpu01\n User alice\nHost gpu02\n User alice\n", "alice@gpu01\nalice@gpu02\n"])
def test_a_byte_order_mark_hides_no_host(text: str) -> None:
    Path("hosts").write_text(text, encoding="utf-8-sig")
    assert made("hosts") == [("gpu01", "alice", None, None), ("gpu02", "alice", None, None)]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["home/.ssh/config", "other"])
def test_what_is_included_is_told_to_be_left_out(capsys: pytest.CaptureFixture[str], name: str) -> None:
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("include lab\nHost gpu01\n UserKnownHostsFile x\n")
    assert made(name) == plain("gpu01")
    lines = capsys.readouterr().err.splitlines()
    said_so = [f"clusterddp: {name}: the files of its Include are not read; hosts that stand there are left out"]
    kept = "UserKnownHostsFile not kept; write what the hosts need into ansible_ssh_common_args"
    assert lines[:-1] == said_so + ([f"clusterddp: {name}: {kept}"] if name == "other" else [])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hosts.txt", "hosts.txt: .txt is no suffix of YAML; name it hosts.yaml"),
        ("lab.v2", "lab.v2: .v2 is no suffix of YAML; name it lab.yaml"),
        ("inventory.toml", "inventory.toml: .toml is no suffix of YAML; name it inventory.yaml"),
        ("nodir/x.yaml", "nodir/x.yaml: there is no folder nodir; make it first"),
    ],
)
def test_a_name_that_up_would_not_take_is_refused(capsys: pytest.CaptureFixture[str], name: str, words: str) -> None:
    assert said(capsys, "init", "gpu01", "-o", name) == (2, [words])
    assert not Path(name).exists()


@pytest.mark.usefixtures("folder")
def test_an_ssh_config_that_hosts_printed_leads_to_the_same_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    Path("old.yaml").write_text("all: {hosts: {a: {ansible_host: 'fe80::1%eth0'}, b: {ansible_host: c.org}}}\n")
    with pytest.raises(SystemExit):
        main(["hosts", "-i", "old.yaml", "--ssh-config"])
    Path("ssh_config").write_text(capsys.readouterr().out)
    assert made("ssh_config") == plain("a", "b")
    assert [host.address for host in load("inventory.yaml").hosts] == ["fe80::1%eth0", "c.org"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["hosts.txt", "hosts.ini", "cluster.yml", "slurm.conf", "nodir/hosts"])
def test_a_file_that_is_not_there_is_no_host(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert said(capsys, "init", name) == (2, [f"{name}: there is no such file; give a file, or hosts as a,b,c"])
    assert not Path("inventory.yaml").exists()
    assert made("gpu01.cluster.sh,gpu02.py.org") == plain("gpu01.cluster.sh", "gpu02.py.org")


@pytest.mark.usefixtures("folder")
def test_a_folder_is_told_to_be_one_and_no_name_is_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("gpu01").mkdir()
    for name in ("gpu01", "gpu01/", "."):
        assert said(capsys, "init", name) == (2, [f"{name}: is a folder; give a file, or hosts as a,b,c"])
    assert said(capsys, "init", "") == (2, ["host list '' names no host; write them as alice@gpu01,gpu02:2222"])
    assert made("gpu01,") == plain("gpu01")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "text",
    [
        "all:\n  hosts:\n    gpu01:\n",
        "[gpu]\ngpu01\n",
        "gpu01 ansible_host=10.0.0.1\n",
        '{"all": {"hosts": {"gpu01": {}}}}',
    ],
)
def test_an_inventory_is_for_up(capsys: pytest.CaptureFixture[str], text: str) -> None:
    Path("my hosts").write_text(text)
    remedy = "`clusterddp up 'my hosts'` takes it as it is"
    assert said(capsys, "init", "my hosts") == (2, [f"my hosts: is an inventory already; {remedy}"])
    assert not Path("inventory.yaml").exists()


@pytest.mark.usefixtures("folder")
def test_a_host_of_the_name_host_is_no_ssh_config() -> None:
    Path("hf").write_text("host 8\nhost2 slots=4\n")
    assert made("hf") == [("host", None, None, 8), ("host2", None, None, 4)]
