"""Real Slurm on a lab's hosts: the first host is the login host and has the controller, the others compute.

with own_lab(3, shared_home=True) as lab:
    slurm = Slurm(lab).start()
    slurm.run("sbatch", "job.sh")
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from typing import TYPE_CHECKING

from tests.lab import slurm_accounts
from tests.lab.options import SYSTEM_PATH
from tests.lab.system import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.lab.host import LabHost
    from tests.lab.lab import Lab

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
CPUS = 8  # of each host, whatever it has
DEVICES = ("null", "zero", "full", "random", "urandom")  # what stands for GPUs
CONFIG = """\
ClusterName=lab
SlurmctldHost={controller}
SlurmUser=root
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters={consumed}
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
MinJobAge={min_job_age}
KillWait={kill_wait}
StateSaveLocation=/var/lib/slurmctld
SlurmdSpoolDir=/var/lib/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=1:00:00 State=UP
PartitionName=urgent Nodes=ALL MaxTime=1:00:00 State=UP PriorityTier=10
PartitionName=closed Nodes=ALL MaxTime=1:00:00 State=UP AllowGroups=root
"""
# A job that takes more memory than it asked for is ended.
MEMORY = """\
DefMemPerCPU=1000
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
"""
# The folder of Slurm of another version, made by `tests/lab/other_slurm.sh`; empty: this machine's.
OTHER = os.environ.get("CLUSTERDDP_SLURM_ROOT", "")
PLUGINS = f"PluginDir={OTHER}/usr/lib/x86_64-linux-gnu/slurm-wlm\n" if OTHER else ""
TAKE_OTHER = """\
for program in {other}/lab/*; do
    ln -sf $program /usr/bin/ && ln -sf $program /usr/sbin/
done
"""
# Each host is to have cgroups of its own: 22.05 wants to mount and to change them.
PREPARE = """\
set -e
for folder in /run/munge /var/lib/munge /var/log/munge; do mkdir -p $folder; chown munge:munge $folder; done
chmod 755 /run/munge
mkdir -p /var/lib/slurmctld /var/lib/slurmd
umount -l /sys/fs/cgroup 2>/dev/null || true
mount -t tmpfs tmpfs /sys/fs/cgroup
for name in freezer memory cpuset cpu devices; do
    mkdir /sys/fs/cgroup/$name
    mount -t cgroup -o $name cgroup /sys/fs/cgroup/$name
done
setpriv --reuid=munge --regid=munge --init-groups /usr/sbin/munged
"""


@cache
def why_no_slurm() -> str | None:
    """The reason why there is no Slurm for a lab on this machine; None when there is."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=SYSTEM_PATH) is None]
    return f"Slurm's {', '.join(missing)} not installed (slurm-wlm, munge)" if missing else None


class Slurm:
    """Slurm on a lab that is up.

    Args:
        lab: At least two hosts, with a home that they share.
        gpus: Each compute host's GPUs by its name, where they differ from one, five at most.
        kill_wait: Seconds between SIGTERM and SIGKILL for a job that is ended.
        min_job_age: Seconds for which the controller remembers a job that has ended.
        memory: Whether memory is given out, and a job that takes more is ended.
        accounts: Whether there are accounts, with limits that hold.
    """

    def __init__(
        self,
        lab: Lab,
        *,
        gpus: dict[str, int] | None = None,
        kill_wait: int = 30,
        min_job_age: int = 60,
        memory: bool = False,
        accounts: bool = False,
    ) -> None:
        self.lab = lab
        self.controller, *self.compute = lab.hosts
        self._gpus = gpus or {}
        self._memory = memory
        self._accounts = accounts
        self._times = {"kill_wait": kill_wait, "min_job_age": min_job_age}

    def start(self) -> Slurm:
        """Bring it up on all hosts; returns when every compute host is idle."""
        for host in self.lab.hosts:
            self._configure(host)
        if self._accounts:
            slurm_accounts.start_accounting(self.controller, PLUGINS)
        self.controller.run(["slurmctld", "-i"], user="root")
        for host in self.compute:
            host.run(["slurmd", "-N", host.name], user="root")
        self.wait_idle()
        return self

    def _configure(self, host: LabHost) -> None:
        lines = [
            f"NodeName={one.name} NodeAddr={one.address} CPUs={CPUS} RealMemory=4000"
            f" Gres=gpu:{self._gpus.get(one.name, 1)} State=UNKNOWN"
            for one in self.compute
        ]
        consumed = "CR_Core_Memory" if self._memory else "CR_Core"
        nodes = "\n".join(lines)
        more = MEMORY * self._memory + slurm_accounts.CONFIG * self._accounts
        text = PLUGINS + more + CONFIG
        config = text.format(controller=self.controller.name, nodes=nodes, consumed=consumed, **self._times)
        devices = "".join(f"Name=gpu File=/dev/{name}\n" for name in DEVICES[: self._gpus.get(host.name, 1)])
        files = {"slurm.conf": config, "gres.conf": devices, "cgroup.conf": "CgroupPlugin=cgroup/v1\n"}
        for name, text in files.items():
            host.write(f"/etc/slurm/{name}", text, user="root")
        prepare = PREPARE + (TAKE_OTHER.format(other=OTHER) if OTHER else "")
        host.run(["bash", "-c", prepare], user="root")

    def keep_own_writes(self) -> None:
        """Each compute host sees in the shared home what others write there, and keeps what it writes to itself."""
        home = self.lab.hosts[0].user().home
        script = """
        mkdir -p /run/over/upper /run/over/work && chown --reference="$1" /run/over/upper
        mount -t overlay overlay -o lowerdir="$1",upperdir=/run/over/upper,workdir=/run/over/work "$1"
        """
        for host in self.compute:
            host.run(["sh", "-ec", script, "sh", home], user="root")

    def wait_idle(self) -> None:
        """Return when every compute host is idle."""
        wanted = {host.name for host in self.compute}

        def idle() -> bool:
            said = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %t").split("\n")
            return {line.split()[0] for line in said if line.endswith(" idle")} == wanted

        wait_until("Slurm's hosts are idle", idle)

    def run(self, *argv: str) -> str:
        """What a command of Slurm's says on the login host, as the lab's user."""
        return self.controller.run(argv).stdout

    def stop_controller(self) -> None:
        """End slurmctld; running jobs go on."""
        self.controller.run(["scontrol", "shutdown", "slurmctld"], user="root")
        gone = ["sh", "-c", "! pgrep -x slurmctld"]
        wait_until("slurmctld ends", lambda: not self.controller.run(gone, user="root", check=False).returncode)

    def start_controller(self) -> None:
        """Start slurmctld again, which knows its jobs."""
        self.controller.run(["slurmctld"], user="root")

    def boot(self, host: LabHost) -> None:
        """Power a host on again, with what it has of Slurm."""
        host.boot()
        host.run(["bash", "-c", PREPARE], user="root")
        if host is self.controller:
            self.start_controller()
        else:
            host.run(["slurmd", "-N", host.name], user="root")

    def write_inventory(self, variables: Mapping[str, object] | None = None, path: Path | None = None) -> Path:
        """An inventory that names the login host alone, with these variables."""
        shared = {"clusterddp_launcher": "slurm", **(variables or {})}
        more: dict[str, dict[str, object]] = {"all": shared, self.controller.name: {"clusterddp_role": "login"}}
        return self.lab.write_inventory(path, hosts=[self.controller.name], more=more)
