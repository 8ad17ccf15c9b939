"""From open hosts to a launch plan: facts, network, code on every host, one node each.

Not here: opening connections (api.py) and starting what was planned (launchers/).
"""

from __future__ import annotations

import getpass
import os
import secrets as random
import shlex
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import clusterddp
from clusterddp import sync
from clusterddp.errors import HelperError, PlanError, UsageError
from clusterddp.facts import assign_gpus, check_gpus
from clusterddp.fanout import values
from clusterddp.plan import LaunchOptions, Node, make_plan
from clusterddp.probe import probe, probe_network

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterddp.facts import Facts
    from clusterddp.fanout import Host
    from clusterddp.inventory import Inventory
    from clusterddp.plan import LaunchPlan
    from clusterddp.project import Project
