"""``[tool.clusterddp]``: whose word counts, and what is said when a key is wrong."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

from clusterddp.cli import pyproject
from clusterddp.cli.actions import run_action
from clusterddp.cli.main import COMMANDS, main
from clusterddp.cli.project_options import CONSENT_OPTIONS, KEYS
from clusterddp.errors import UsageError
from clusterddp.inventory import HostEntry, Inventory
from clusterddp.project.project import find
from tests.unit.cli_help import folder, project, said

__all__ = ["folder"]  # fixture

pytestmark = pytest.mark.usefixtures("folder")


# (a line of [tool.clusterddp], its key, what is said)
WRONG_KEYS = [
    ('graze = "3s"', "graze", "no such option; did you mean grace?"),
    ("zzz = 1", "zzz", "known are breakpoint-timeout, debug-comm, "),
    ('grace = "soon"', "grace", "'soon' is no duration"),
    ("grace = true", "grace", "'true' is no duration"),
    ("grace = [3]", "grace", "[3] is not one value"),
    ("max-restarts = 1.5", "max-restarts", "'1.5' is no number"),
    ("share_gpus = 7", "share_gpus", "'7' is not a valid boolean"),
    ("nproc-per-node = 0", "nproc-per-node", "'0' is neither auto nor a number"),
    ('gpus = "first"', "gpus", "not a choice of GPUs"),
    ('gpus = "free:2"', "gpus", "give it on the line of `run`"),
    ('limit = "gpu99"', "limit", "limit 'gpu99' selects no host"),
    ('limit = "@hosts.txt"', "limit", "@ reads a file; give it on the line: --limit @FILE"),
    ('inventory = "none.yaml"', "inventory", "there is no such inventory file"),
]


@pytest.mark.parametrize(("text", "key", "words_said"), WRONG_KEYS, ids=[text for text, _, _ in WRONG_KEYS])
def test_a_wrong_key_of_the_project_is_named(
    capsys: pytest.CaptureFixture[str], folder: Path, text: str, key: str, words_said: str
) -> None:
    project(folder, text)
    code, lines = said(capsys, "run", "train.py")
    assert (code, len(lines)) == (125, 1), lines
    assert lines[0].startswith(f"{folder}/pyproject.toml:tool.clusterddp.{key}: ")
    assert words_said in lines[0]


def test_help_works_beside_a_wrong_project_file(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    project(folder, "zzz = 1")
    for argv in (["--help"], ["run", "--help"], ["stop", "-h"]):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert not ended.value.code
    assert "Usage: clusterddp run [OPTIONS] SCRIPT" in capsys.readouterr().out


def test_the_projects_keys_are_the_options_that_variables_set_too() -> None:
    names = {
        parameter.name
        for command in COMMANDS
        for parameter in importlib.import_module(f"clusterddp.cli.commands.{command}").command.params
        if getattr(parameter, "envvar", None)
    }
    assert names - {"notify"} == set(KEYS) - {"python"}  # a command here is nothing that a clone may bring


def test_the_line_comes_before_the_variable_and_that_before_the_project(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = importlib.import_module("clusterddp.cli.commands.stop").command

    def grace(*argv: str) -> object:
        return stop.make_context("stop", list(argv), default_map=pyproject.Defaults("stop")).params["grace"]

    assert grace() == 30
    project(folder, 'grace = "3m"\nno-sync = true\nlimit = "x"')
    assert grace() == 180
    monkeypatch.setenv("CLUSTERDDP_GRACE", "2m")
    assert grace() == 120
    assert grace("--grace", "1m") == 60


def test_the_projects_nodes_are_those_of_runs_alone(folder: Path) -> None:
    project(folder, "nnodes = 2")
    for name, words, given in (("run", ["train.py"], True), ("doctor", [], False)):
        command = importlib.import_module(f"clusterddp.cli.commands.{name}").command
        params = command.make_context(name, words, default_map=pyproject.Defaults(name)).params
        assert (params["nnodes"] is not None) == given


@pytest.mark.parametrize("by", ["variable", "project"])
@pytest.mark.parametrize(("word", "taken"), [("--detach", "keep"), ("--array=0-1", "keep"), ("--no-sync", "stop")])
def test_what_to_do_without_a_terminal_is_no_word_for_a_run_that_has_none(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch, by: str, word: str, taken: str
) -> None:
    def refuse(run_values: dict[str, object], *_: object) -> None:
        raise UsageError(f"it is {run_values['on_disconnect']}")

    monkeypatch.setattr(run_action, "make_run_options", refuse)
    if by == "variable":
        monkeypatch.setenv("CLUSTERDDP_ON_DISCONNECT", "stop")
    else:
        project(folder, 'on-disconnect = "stop"')
    assert said(capsys, "run", word, "train.py") == (125, [f"it is {taken}"])


def test_what_the_inventory_says_of_a_host_stands_above_the_project(folder: Path) -> None:
    project(folder, 'nproc_per_node = 3\ngpus = "0,1"')
    hosts = (
        HostEntry(name="silent", address="silent"),
        HostEntry(name="told", address="told", nproc=2, gpus=4, vars={"clusterddp_nproc": 2, "clusterddp_gpus": 4}),
        HostEntry(name="auto", address="auto", vars={"clusterddp_nproc": "auto"}),
    )
    found = pyproject.with_defaults(Inventory(path=None, hosts=hosts, groups={}), find()).hosts
    assert [(host.nproc, host.gpus) for host in found] == [(3, ("0", "1")), (2, 4), (None, ("0", "1"))]


def hosts_shown(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    with pytest.raises(SystemExit) as ended:
        main(["hosts", "--json", *argv])
    assert not ended.value.code
    return [host["name"] for host in json.loads(capsys.readouterr().out)]


def test_the_projects_inventory_is_only_named_and_its_limit_holds_with_minus_i(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "lab").mkdir()
    for name, first in (("lab/all.yaml", "a"), ("mine.yaml", "m")):
        (folder / name).write_text(f"all: {{hosts: {{'{first}[1:3]': }}}}\n")
    project(folder, 'inventory = "lab/all.yaml"\nlimit = "a2"')
    code, lines = said(capsys, "hosts")
    place = f"{folder}/pyproject.toml:tool.clusterddp.inventory"
    why = "the inventory lab/all.yaml is not read without your consent"
    assert (code, lines) == (2, [f"{place}: {why}; if you trust it: `clusterddp up lab/all.yaml`"])
    assert hosts_shown(capsys, "-i", "lab/all.yaml") == ["a2"]
    assert hosts_shown(capsys, "-i", "lab/all.yaml", "--limit", "all:!a2") == ["a1", "a3"]
    find().remember(folder / "mine.yaml", "m1:m3")
    assert hosts_shown(capsys) == ["m1", "m3"]
    assert hosts_shown(capsys, "--limit", "m2") == ["m2"]


def test_a_limit_that_was_not_typed_is_shown_with_who_said_it(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_line(*argv: str) -> str:
        hosts_shown(capsys, *argv)
        return heard.pop(0)

    heard: list[str] = []
    monkeypatch.setattr("clusterddp.cli.session.say", heard.append)
    (folder / "all.yaml").write_text("all: {hosts: {'a[1:3]': }}\n")
    assert first_line("-i", "all.yaml") == "cluster: 3 hosts from all.yaml"
    find().remember(folder / "all.yaml", "a[1:2]")
    assert first_line() == "cluster: 2 hosts from all.yaml, limit a[1:2] (remembered by up)"
    assert first_line("--limit", "a3") == "cluster: 1 host from all.yaml"
    monkeypatch.setenv("CLUSTERDDP_LIMIT", "a3")
    assert first_line() == "cluster: 1 host from all.yaml, limit a3 (CLUSTERDDP_LIMIT)"


def test_a_remembered_limit_that_selects_nothing_says_whose_it_is(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "mine.yaml").write_text("all: {hosts: {a: }}\n")
    find().remember(folder / "mine.yaml", "b")
    code, lines = said(capsys, "hosts")
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith("remembered by up: limit 'b' selects no host")
    (folder / "mine.yaml").unlink()
    code, lines = said(capsys, "hosts")
    assert (code, lines[0].startswith(f"{folder}/mine.yaml: the remembered inventory is gone")) == (2, True)


def test_no_host_that_takes_part_is_an_error_of_the_inventory(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "i.yaml").write_text("all: {hosts: {a: {clusterddp_role: login}}}\n")
    for argv, code in ((["up", "i.yaml"], 2), (["run", "-i", "i.yaml", "train.py"], 125)):
        found, lines = said(capsys, *argv)
        assert (found, lines[-1].partition(";")[0]) == (
            code,
            "i.yaml: no host takes part: each has a clusterddp_role other than node",
        )


def test_the_page_says_of_every_key_whether_a_clone_may_set_it() -> None:
    page = (Path(__file__).parents[3] / "docs" / "inventory.md").read_text(encoding="utf-8")
    table = page.partition("| key of `[tool.clusterddp]` |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    keys = {key: meaning for names, meaning in rows for key in re.findall(r"`([a-z-]+)`", names)}
    assert {key.replace("-", "_") for key in keys} == {*KEYS, "project"}
    assert {key for key, meaning in keys.items() if "consent" in meaning} == {*CONSENT_OPTIONS}
