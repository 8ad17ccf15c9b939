"""Checks of InfiniBand and RoCE ports: where hosts differ in them, NCCL falls back to sockets or hangs.

Tested only against a made-up sysfs tree that follows the kernel's documentation, not on real adapters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.checks.catalog.network import CATEGORY
from clusterddp.checks.model import Check, Finding, odd_ones, warn
from clusterddp.checks.needs import HEALTH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterddp.checks.evidence import Evidence

_ACTIVE = "ACTIVE"
_MEANINGS = {"INIT": "no subnet manager has set it up", "DOWN": "no link"}


def _inactive_ports(evidence: Evidence) -> Iterable[Finding]:
    """Warn of inactive InfiniBand ports; DOWN may mean unused, so it counts only if another host uses the same port."""
    used = {str(hca) for _, health in HEALTH.each(evidence) for hca in health.hcas if hca.state == _ACTIVE}
    for entry, health in HEALTH.each(evidence):
        wrong = [hca for hca in health.hcas if hca.state != _ACTIVE and (hca.state != "DOWN" or str(hca) in used)]
        if wrong:
            states = [f"{hca} is {hca.state} ({_MEANINGS.get(hca.state, 'not in use')})" for hca in wrong]
            yield warn(entry.name, ", ".join(states))


def _differing_ports(evidence: Evidence) -> Iterable[Finding]:
    """Compare the lists of ports, then rate, link layer and RoCE GID index of each port active on several hosts."""
    names = {entry.name: " ".join(str(hca) for hca in health.hcas) for entry, health in HEALTH.each(evidence)}
    usual, odd = odd_ones(names)
    for host, found in odd.items():
        yield warn(host, f"has the ports {found or 'none'}, most have {usual or 'none'}")
    active = [
        (entry.name, hca) for entry, health in HEALTH.each(evidence) for hca in health.hcas if hca.state == _ACTIVE
    ]
    for port in dict.fromkeys(str(hca) for _, hca in active):
        same = {host: hca for host, hca in active if str(hca) == port}
        links = {host: f"{hca.link_layer} at {hca.rate_gbit} Gbit/s" for host, hca in same.items()}
        yield from _compare_port(port, links)
        over_ethernet = {host: hca for host, hca in same.items() if hca.link_layer == "Ethernet"}
        yield from _compare_port(port, {host: f"GID index {hca.roce_index}" for host, hca in over_ethernet.items()})


def _compare_port(port: str, by_host: dict[str, str]) -> Iterable[Finding]:
    """Warn of the hosts whose value for a port is not that of most hosts."""
    usual, odd = odd_ones(by_host)
    for host, found in odd.items():
        yield warn(host, f"{port} has {found}, most have {usual}")


CHECKS = (
    Check(
        name="hca-active",
        category=CATEGORY,
        title="InfiniBand and RoCE ports are active",
        judge=_inactive_ports,
        needs=(HEALTH,),
        symptom="NCCL falls back to sockets (NET/Socket in its log), a tenth of the speed; or ibv_modify_qp failed",
        fix="look at cable and switch, and for INIT at the subnet manager (`ibstat`); or leave it out by NCCL_IB_HCA",
    ),
    Check(
        name="hca-equal",
        category=CATEGORY,
        title="the same InfiniBand and RoCE ports everywhere",
        judge=_differing_ports,
        needs=(HEALTH,),
        after=("hca-active",),
        symptom="NCCL takes other rails on other hosts: slow, or a hang; Call to ibv_modify_qp failed with 110",
        fix="name what all have in NCCL_IB_HCA, and for RoCE NCCL_IB_GID_INDEX per host, both in clusterddp_env",
    ),
)
