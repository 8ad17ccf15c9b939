"""Machines for tests: hosts on this one that boot, fail and lose power like real ones.

`Lab` makes them, `LabHost` is one; `python -m tests.lab up` makes a lab for people.
Needs Linux and root.
"""

from tests.lab.host import HostEvidence, LabHost
from tests.lab.lab import Lab
from tests.lab.options import HostOptions, LabUnavailable, why_not
from tests.lab.system import LabError

__all__ = ["HostEvidence", "HostOptions", "Lab", "LabError", "LabHost", "LabUnavailable", "why_not"]
