"""The lab from a terminal: `python -m tests.lab up | down | list`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from tests.lab import Lab, LabError, LabUnavailable, registry, why_not
from tests.lab.slurm import Slurm, why_no_slurm
from tests.lean import WHOLE_TORCH


def main() -> int:
    """Run one command; 0 when it worked."""
    options = _parser().parse_args()
    reason = why_not() or (why_no_slurm() if getattr(options, "slurm", False) else None)
    if reason:
        print(f"no lab here: {reason}", file=sys.stderr)
        return 1
    try:
        return int(options.call(options))
    except (LabError, LabUnavailable, ValueError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    commands = parser.add_subparsers(required=True)
    up = commands.add_parser("up", help="boot hosts and print the inventory's path")
    up.add_argument("--hosts", type=int, default=4)
    up.add_argument("--shared-home", action="store_true", help="one /home for all hosts")
    up.add_argument("--two-networks", action="store_true", help="a second card on every host")
    up.add_argument("--bastion", action="store_true", help="the hosts lie behind a bastion")
    up.add_argument("--slurm", action="store_true", help="with Slurm: the first host is its login host")
    up.add_argument("--shell", action="store_true", help="open a shell with CLUSTERDDP_INVENTORY set")
    up.set_defaults(call=_up)
    down = commands.add_parser("down", help="remove labs made by `up`, and what dead processes left")
    down.add_argument("numbers", nargs="*", type=int, help="only these labs, whoever holds them")
    down.set_defaults(call=_down)
    commands.add_parser("list", help="the labs on this machine").set_defaults(call=_list)
    return parser


def _up(options: argparse.Namespace) -> int:
    lab = Lab(
        options.hosts,
        variables=WHOLE_TORCH,
        shared_home=options.shared_home or options.slurm,
        two_networks=options.two_networks,
        bastion=options.bastion,
        kept=True,
    ).start()
    if options.slurm:
        Slurm(lab).start().write_inventory(WHOLE_TORCH)
    if not options.shell:
        print(lab.inventory)
        return 0
    first, last = lab.hosts[0].name, lab.hosts[-1].name
    print(f"lab {lab.number}: {first} to {last}, inventory {lab.inventory}")
    print(f"ssh:  {' '.join(lab.ssh(first))}")
    print(f"exit leaves the shell; the lab stays until `python -m tests.lab down {lab.number}`", flush=True)
    variables = {**os.environ, "CLUSTERDDP_INVENTORY": str(lab.inventory)}
    return subprocess.run([os.environ.get("SHELL", "/bin/sh")], env=variables, check=False).returncode


def _down(options: argparse.Namespace) -> int:
    for number in options.numbers:
        registry.remove(number)
    for number in options.numbers or registry.remove_all():
        print(f"lab {number} removed")
    return 0


def _list(_options: argparse.Namespace) -> int:
    for number in registry.numbers():
        print(f"{number}\t{registry.owner(number)}\t{registry.root() / str(number)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
