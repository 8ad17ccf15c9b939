"""``doctor --fix``: show what our playbooks would change, and change it if the user agrees."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from clusterddp.cli.output import say
from clusterddp.errors import EXIT_FAILED
from clusterddp.provision.ansible import config_notice, playbook_argv, run_at_terminal, source_of
from clusterddp.provision.playbooks import NAMES, own_playbook
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterddp.checks.model import CheckResult
    from clusterddp.inventory import Inventory

_OF_ALL = ("own-name", "names")  # whose remedy takes the addresses of all hosts


def fix_by_playbooks(
    results: Sequence[CheckResult], inventory: Inventory, arguments: Sequence[str], *, yes: bool
) -> int:
    """Show what each playbook would change on which hosts, ask once, and run them; return the exit code."""
    wanted = repairs(results)
    if not wanted:
        say("nothing was found that a playbook of ours mends")
        return 0
    source = source_of(inventory)
    if notice := config_notice(source):
        say(notice)
    commands = []
    for name, checks in wanted.items():
        hosts = list(dict.fromkeys(host for found in checks.values() for host in found))
        if set(_OF_ALL).intersection(checks):
            hosts = [host.name for host in inventory.nodes + inventory.spares]
        say(f"{name} on {folded_names(hosts)}, for {', '.join(checks)}; it would change:")
        argv = playbook_argv(own_playbook(name), source, inventory, arguments, hosts=hosts)
        commands.append((name, argv))
        if code := run_at_terminal([*argv, "--check", "--diff"], source, brief=True):
            return _failed(name, code)
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        say("nothing is changed: nobody is here to say yes; --yes does")
        return EXIT_FAILED
    if not yes:
        click.confirm("clusterddp: run them?", err=True, abort=True)
    for name, argv in commands:
        if code := run_at_terminal(argv, source, brief=True):
            return _failed(name, code)
    say("done; new limits hold from the next login on; `clusterddp doctor` tells what is left")
    return 0


def _failed(name: str, code: int) -> int:
    say(f"{name} failed: ansible-playbook ended with {code}; it may need root: `clusterddp doctor --fix -- -K`")
    return EXIT_FAILED


def repairs(results: Iterable[CheckResult]) -> dict[str, dict[str, list[str]]]:
    """Playbook → check → hosts, for the findings that one of our playbooks repairs."""
    found: dict[str, dict[str, list[str]]] = {}
    for result in results:
        if result.playbook:
            hosts = found.setdefault(result.playbook, {}).setdefault(result.name, [])
            hosts += [host for host in result.hosts if host not in hosts]
    return dict(sorted(found.items(), key=lambda one: NAMES.index(one[0])))
