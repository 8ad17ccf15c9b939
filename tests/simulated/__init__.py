"""Simulated hosts: the other end of the operator's byte pipes, for hundreds and thousands of hosts on one machine.

    with Simulation(1000) as hosts:
        hosts.inventory                                   # path of an inventory
        hosts.clusterddp("exec", "hostname", cwd=folder)  # the real command, in a process of its own

All hosts live in one process (``process.py``), so that the operator's CPU and memory are measured apart. What they
answer comes from one real helper on this machine: each question is put to it once, and the answer is given by every
host, with its own name, address, boot and ranks (``answers.py``). A run's part on a host is a spool that the helper
really reads; its processes alone do not exist (``run_parts.py``). Only SSH is left out, and what hosts say of the
network between them: every dial succeeds.

A ``Fault`` makes single hosts slow, silent, or die in the middle of an answer.
"""

from __future__ import annotations
