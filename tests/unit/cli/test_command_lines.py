"""Commands in messages hold what the user's own line named."""

from __future__ import annotations

import click

from clusterddp.cli.command_lines import (
    NO_INVENTORY,
    complete_commands,
    remember_cluster,
    remember_folder,
    remember_inventory,
)
from clusterddp.cli.main import COMMANDS, cli


def test_without_folder_and_inventory_a_message_is_as_it_is() -> None:
    assert complete_commands("`clusterddp stop abc` ends it") == "`clusterddp stop abc` ends it"


def test_each_command_gets_what_the_line_named() -> None:
    remember_folder("my project")
    remember_inventory("a b.yaml")
    assert complete_commands("`clusterddp logs --follow x` shows it, `clusterddp stop x` ends it; `nvidia-smi`") == (
        "`clusterddp -C 'my project' logs -i 'a b.yaml' --follow x` shows it,"
        " `clusterddp -C 'my project' stop -i 'a b.yaml' x` ends it; `nvidia-smi`"
    )
    assert complete_commands("`clusterddp down` again") == "`clusterddp -C 'my project' down -i 'a b.yaml'` again"


def test_git_works_in_the_folder_that_the_line_named() -> None:
    remember_inventory("a.yaml")
    assert complete_commands("`git rm --cached a` ends that") == "`git rm --cached a` ends that"
    remember_folder("my project")
    assert complete_commands("`git rm --cached a` ends that") == "`git -C 'my project' rm --cached a` ends that"


def test_an_inventory_that_a_command_names_or_cannot_take_is_not_added() -> None:
    remember_inventory("a.yaml")
    for line in ("`clusterddp run -i b.yaml SCRIPT`", "`clusterddp up b.yaml`", "`clusterddp init a,b`"):
        assert complete_commands(line) == line


def test_up_alone_gets_the_inventory_that_the_command_works_on() -> None:
    remember_cluster("a b.yaml", None)
    assert complete_commands("`clusterddp up` builds it") == "`clusterddp up 'a b.yaml'` builds it"
    assert complete_commands("`clusterddp up FILE` remembers it") == "`clusterddp up FILE` remembers it"
    remember_cluster("-a.yaml", "gpu0*")
    remember_folder("x")
    assert complete_commands("`clusterddp up` builds it") == "`clusterddp -C x up ./-a.yaml --limit 'gpu0*'` builds it"


def test_folders_that_follow_each_other_are_one() -> None:
    remember_folder("a")
    remember_folder("b")
    assert complete_commands("`clusterddp runs`") == "`clusterddp -C a/b runs`"


def test_all_other_commands_take_an_inventory() -> None:
    commands = {name: cli.get_command(click.Context(cli), name) for name in COMMANDS}
    without = {name for name, one in commands.items() if one and not any("-i" in p.opts for p in one.params)}
    assert without == NO_INVENTORY
