"""The meaning of the Xid error numbers of NVIDIA's driver and what to do, after NVIDIA's catalogue "Xid Errors"."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from clusterddp.checks.model import Verdict

CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/"
RESET = "when nothing runs on it, reset it (`sudo nvidia-smi -r -i INDEX`) or reboot; replace it if this comes back"
REBOOT = "reboot the host; if this comes back, have the card, its slot and its power looked at"
WATCH = "run on; reset the GPU when nothing runs on it, and replace it if this comes back often"


class XidMeaning(NamedTuple):
    """What an Xid means, what to do, and the verdict on a host where it occurred recently."""

    text: str
    action: str
    verdict: Verdict


MEANINGS = {
    48: XidMeaning("an uncorrectable memory error", RESET, "fail"),
    61: XidMeaning("the GPU's micro-controller met an error", RESET, "warn"),
    62: XidMeaning("the GPU's micro-controller has halted", RESET, "fail"),
    63: XidMeaning("bad memory is marked to be replaced by spare rows", WATCH, "warn"),
    64: XidMeaning("bad memory could not be replaced by spare rows", RESET, "fail"),
    74: XidMeaning("an NVLink broke", RESET, "fail"),
    79: XidMeaning("the GPU has fallen off the bus", REBOOT, "fail"),
    92: XidMeaning("many correctable memory errors", WATCH, "warn"),
    94: XidMeaning("an uncorrectable memory error that ended one program", WATCH, "warn"),
    95: XidMeaning("an uncorrectable memory error that could not be contained", RESET, "fail"),
    109: XidMeaning("a program could not be switched off the GPU in time", RESET, "warn"),
    110: XidMeaning("a security fault", REBOOT, "fail"),
    119: XidMeaning("the GPU's system processor does not answer", RESET, "fail"),
    120: XidMeaning("the GPU's system processor met an error", RESET, "fail"),
    121: XidMeaning("an error on the link between processor and GPU was corrected", WATCH, "warn"),
    140: XidMeaning("a memory error that was not recovered", RESET, "fail"),
    143: XidMeaning("the GPU could not be started", REBOOT, "fail"),
    154: XidMeaning("the driver asks for another way of recovery", RESET, "warn"),
    **{xid: XidMeaning("an NVLink reported an error", RESET, "warn") for xid in range(144, 151)},
}
# Caused by a faulty or killed program: they say nothing about the next job.
OF_PROGRAMS = frozenset((8, 11, 13, 31, 32, 43, 45, 68, 69))
OTHER = XidMeaning("an error of the driver", f"look it up in {CATALOGUE}", "warn")
