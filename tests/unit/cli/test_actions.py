"""A command's options and what does it are two modules: the one takes what the other declares."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import fields

import pytest

from clusterddp.cli.actions import logs_action as logs
from clusterddp.cli.main import COMMANDS
from tests.unit.cli.test_start_up import imported


def declared(name: str) -> set[str]:
    command = importlib.import_module(f"clusterddp.cli.commands.{name}").command
    return {parameter.name for parameter in command.params if parameter.expose_value}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_action_takes_the_options_of_its_command(name: str) -> None:
    taken = inspect.signature(importlib.import_module(f"clusterddp.cli.actions.{name}_action").act).parameters
    more = [one for one, parameter in taken.items() if parameter.kind is inspect.Parameter.VAR_KEYWORD]
    named = taken.keys() - {*more}
    assert named <= declared(name)
    assert more or named == declared(name)


def test_logs_reads_each_of_its_options() -> None:
    assert {one.name for one in fields(logs.LogsOptions)} == declared("logs") - {"inventory", "limit", "run"}


def test_the_list_of_commands_imports_what_none_of_them_does() -> None:
    names = imported("from clusterddp.cli.main import cli; cli.main(['--help'], standalone_mode=False)")
    assert "clusterddp.cli.commands.run" in names
    assert [name for name in names if name.startswith(("clusterddp.cli.actions.", "clusterddp.api"))] == []
