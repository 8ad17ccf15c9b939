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

_CHECKS_OF_ALL_HOSTS = ("own-name", "names")  # whose remedy takes the addresses of all hosts


def fix_by_playbooks(
    results: Sequence[CheckResult], inventory: Inventory, arguments: Sequence[str], *, yes: bool
) -> int:
    """Show what each playbook would change on which hosts, ask once, and run them; return the exit code."""
    needed = repairs(results)
    if not needed:
        say("nothing was found that a playbook of ours mends")
        return 0
    source = source_of(inventory)
    if notice := config_notice(source):
        say(notice)
    commands = []
    for name, checks in needed.items():
        hosts = list(dict.fromkeys(host for names in checks.values() for host in names))
        if set(_CHECKS_OF_ALL_HOSTS).intersection(checks):
            hosts = [host.name for host in inventory.run_hosts]
        say(f"{name} on {folded_names(hosts)}, for {', '.join(checks)}; it would change:")
        argv = playbook_argv(own_playbook(name), source, inventory, arguments, hosts=hosts)
        commands.append((name, argv))
        if code := run_at_terminal([*argv, "--check", "--diff"], source, brief=True):
            return _report_failure(name, code)
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        say("nothing is changed: nobody is here to say yes; --yes does")
        return EXIT_FAILED
    if not yes:
        click.confirm("clusterddp: run them?", err=True, abort=True)
    for name, argv in commands:
        if code := run_at_terminal(argv, source, brief=True):
            return _report_failure(name, code)
    say("done; new limits hold from the next login on; `clusterddp doctor` tells what is left")
    return 0


def _report_failure(name: str, code: int) -> int:
    say(f"{name} failed: ansible-playbook ended with {code}; it may need root: `clusterddp doctor --fix -- -K`")
    return EXIT_FAILED


def repairs(results: Iterable[CheckResult]) -> dict[str, dict[str, list[str]]]:
    """Return the findings that our playbooks repair: playbook → check → its hosts, in the order to run them."""
    playbooks: dict[str, dict[str, list[str]]] = {}
    for result in results:
        if result.playbook:
            hosts = playbooks.setdefault(result.playbook, {}).setdefault(result.name, [])
            hosts += [host for host in result.hosts if host not in hosts]
    return dict(sorted(playbooks.items(), key=lambda pair: NAMES.index(pair[0])))
