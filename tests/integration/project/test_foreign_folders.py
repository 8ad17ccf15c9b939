"""Files that a user brings or sends to a folder where others write too: these lead and change nothing."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.shared.wire.chunks import digest_of
from tests.integration.complaint import one_line
from tests.integration.two_users import STRANGER, VICTIM, Machine, give, needs_two_users

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.cli import Done

pytestmark = needs_two_users


@pytest.fixture
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory() as base:
        yield Machine(Path(base))


@pytest.fixture
def model(machine: Machine) -> Path:
    """A file of the victim's that is to be brought, or sent."""
    path = machine.home / "out" / "model.pt"
    path.parent.mkdir()
    path.write_bytes(b"good")
    give(path.parent, VICTIM)
    return path


def transfer(machine: Machine, verb: str, what: Path, to: str) -> Done:
    """A pull or a push; the host is this machine."""
    inventory = machine.home / "inventory.yaml"
    inventory.write_text("all: {hosts: {n: {ansible_connection: local}}}\n")
    give(inventory, VICTIM)
    return machine.run(verb, "-i", str(inventory), str(what), to)


def as_stranger(*argv: str) -> None:
    words = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", *argv]
    subprocess.run(words, check=True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def parts_folder(machine: Machine, model: Path, verb: str) -> Path:
    """The folder in which a transfer assembles what comes to the shared folder; a push names it by the host."""
    if verb == "pull":
        return machine.shared / ".clusterddp-parts"
    assert transfer(machine, verb, model, f"{machine.home}/elsewhere/").code == 0  # the host gets its id
    host_id = (machine.home / ".clusterddp/host-id").read_text()
    return machine.shared / f".clusterddp-parts-{digest_of(f'{os.uname().nodename} {host_id}'.encode())[:16]}"


@pytest.mark.parametrize("verb", ["pull", "push"])
def test_contents_are_not_put_together_in_a_strangers_folder(machine: Machine, model: Path, verb: str) -> None:
    parts = parts_folder(machine, model, verb)
    as_stranger("mkdir", "-m", "777", str(parts))
    refused = transfer(machine, verb, model, f"{machine.shared}/")
    said = one_line(refused, 1, str(parts), "belongs to another user")
    assert "give another destination" in said or "have its owner do so" in said
    assert names(machine.shared) == ["x"]
    assert not list(parts.iterdir())
    as_stranger("rmdir", str(parts))
    assert transfer(machine, verb, model, f"{machine.shared}/").code == 0
    assert (machine.shared / "model.pt").read_bytes() == b"good"


@pytest.mark.parametrize("verb", ["pull", "push"])
def test_parts_of_a_broken_transfer_are_closed_to_others_first(machine: Machine, model: Path, verb: str) -> None:
    parts = parts_folder(machine, model, verb)
    parts.mkdir()
    (parts / ("0" * 64)).write_bytes(b"of another content")  # so that the folder stays
    give(parts, VICTIM)
    parts.chmod(0o777)
    assert transfer(machine, verb, model, f"{machine.shared}/").code == 0
    assert parts.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("verb", ["pull", "push"])
@pytest.mark.parametrize("behind", ["", "deep/er/"])
def test_a_strangers_link_on_the_way_leads_nowhere(machine: Machine, model: Path, verb: str, behind: str) -> None:
    machine.shared.chmod(0o777)  # not sticky: no kernel helps
    link = machine.shared / "dest"
    as_stranger("ln", "-s", str(machine.home), str(link))
    refused = transfer(machine, verb, model, f"{link}/{behind}")
    one_line(refused, 1, "dest", "link")
    assert names(machine.home) == ["inventory.yaml", "out"]


def test_a_strangers_link_to_what_is_not_there_yet_leads_nowhere(machine: Machine, model: Path) -> None:
    machine.shared.chmod(0o777)
    as_stranger("ln", "-s", str(machine.home / "new"), str(machine.shared / "dest"))
    for verb in ("pull", "push"):
        one_line(transfer(machine, verb, model, f"{machine.shared}/dest/deep/"), 1, "dest", "link")
    assert names(machine.home) == ["inventory.yaml", "out"]


@pytest.mark.parametrize("verb", ["pull", "push"])
def test_ones_own_link_on_the_way_is_followed(machine: Machine, model: Path, verb: str) -> None:
    (machine.home / "disk").mkdir()
    link = machine.home / "dest"
    link.symlink_to("./disk/../disk")
    for path in (machine.home / "disk", link):
        os.chown(path, VICTIM, VICTIM, follow_symlinks=False)
    assert transfer(machine, verb, model, f"{link}/deep/er/").code == 0
    assert (machine.home / "disk/deep/er/model.pt").read_bytes() == b"good"


def test_a_sync_goes_through_no_strangers_link(machine: Machine) -> None:
    machine.shared.chmod(0o777)
    as_stranger("ln", "-s", str(machine.home), str(machine.shared / "projects"))
    inventory = machine.work / "inventory.yaml"
    workdir = machine.shared / "projects" / "work"
    variables = f"{{ansible_connection: local, clusterddp_workdir: {workdir}}}"
    inventory.write_text(f"all: {{hosts: {{n: {variables}}}}}\n")
    give(inventory, VICTIM)
    one_line(machine.run("sync", "-i", str(inventory)), 1, "projects is another user's link")
    assert names(machine.home) == []
