"""Checks of Slurm: its configuration as the login host shows it, and whether nodes are as Slurm believes."""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from clusterddp.checks.evidence import SlurmEvidence
from clusterddp.checks.model import Check, Finding, fail, warn
from clusterddp.checks.needs import SLURM, SLURM_NODE
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import few, folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clusterddp.checks.evidence import Evidence

CATEGORY = "Slurm"
CONTROLLER = "slurm-controller"
# Node states in which no job can start. A node that is powered down is not among them: Slurm boots it for a job.
_UNAVAILABLE = frozenset((
    "BLOCKED", "DOWN", "DRAIN", "DRAINED", "DRAINING", "ERROR", "FAIL", "FAILING", "FUTURE", "INVALID_REG", "MAINT",
    "MAINTENANCE", "NOT_RESPONDING", "UNKNOWN",
))  # fmt: skip
_NOT_AUTHENTICATED = "Slurm's controller takes nothing from the login host: their clocks or their keys of munge differ"
_FIND_CAUSE = "`munge -n | ssh CONTROLLER unmunge` says which"
# Parts of error messages of Slurm's programs that munge or a clock causes → their meaning, and the remedy.
_ERROR_CAUSES = (
    ("Expired credential", "the clocks of the login host and of Slurm's controller differ", "set them by NTP"),
    ("Rewound credential", "the clocks of the login host and of Slurm's controller differ", "set them by NTP"),
    ("Invalid credential", "munge's key is not that of Slurm's controller", "copy /etc/munge/munge.key from it"),
    ("munge.socket", "munged does not run on the login host", "ask who runs the cluster to start it"),
    ("Zero Bytes were transmitted", _NOT_AUTHENTICATED, _FIND_CAUSE),  # the controller has dropped the connection
    ("Protocol authentication error", _NOT_AUTHENTICATED, _FIND_CAUSE),
    ("Munge", "munge does not work on the login host", "ask who runs the cluster: `munge -n | unmunge` shows why"),
)


class Problem(NamedTuple):
    """What is wrong with Slurm or with what was asked of it, before it is reported on a host."""

    verdict: str  # ``fail`` or ``warn``
    message: str
    fix: str = ""  # empty: the check's own remedy


def _on_login_host(
    find_problems: Callable[[SlurmEvidence], Iterable[Problem]],
) -> Callable[[Evidence], Iterable[Finding]]:
    """Return a check's judge: it reports the problems that are found in Slurm's answers on the login host."""

    def judge(evidence: Evidence) -> Iterable[Finding]:
        host, report = evidence.hosts[0].name, evidence.manager or SlurmEvidence()
        return [
            (fail if verdict == "fail" else warn)(host, message, **({"fix": fix} if fix else {}))
            for verdict, message, fix in find_problems(report)
        ]

    return judge


def _controller(report: SlurmEvidence) -> Iterable[Problem]:
    """Slurm's controller does not answer the login host; known causes are named."""
    if report.error:
        known = ((means, fix) for part, means, fix in _ERROR_CAUSES if part in report.error)
        means, fix = next(known, ("", ""))
        yield Problem("fail", f"{means} ({report.error})" if means else report.error, fix)


def _partition(report: SlurmEvidence) -> Iterable[Problem]:
    """The partition is not there or not up, or takes no job of this size or account; of several, none takes one."""
    asked = report.asked.get("partition", "")
    found = {partition.get("PartitionName", asked): partition for partition in report.partitions}
    missing = [name for name in asked.split(",") if name not in found] if asked or not found else []
    for name in missing:
        yield Problem("fail", f"no partition {name} is there for the user" if name else "there is no default partition")
    refused = [list(_refusals(name, partition, report.asked)) for name, partition in found.items()]
    if all(refused):
        yield from chain.from_iterable(refused)


def _refusals(name: str, partition: Mapping[str, str], asked: Mapping[str, str]) -> Iterable[Problem]:
    """Yield why a partition takes no such job."""
    if partition.get("State") != "UP":
        yield Problem("fail", f"partition {name} is {partition.get('State')}", "choose another: `sinfo` lists them")
    wanted = _number(asked.get("nodes"))
    limits = [most for one in ("MaxNodes", "TotalNodes") if (most := _number(partition.get(one))) is not None]
    if wanted and limits and wanted > min(limits):
        allowed = counted(min(limits), "node")
        yield Problem("fail", f"partition {name} gives a job {allowed} at most, and {wanted} are asked for")
    accounts = partition.get("AllowAccounts", "ALL")
    account = asked.get("account", "")
    if account and accounts != "ALL" and account not in accounts.split(","):
        yield Problem("fail", f"partition {name} takes no job of account {account}", f"its accounts: {accounts}")


def is_unavailable(state: str) -> bool:
    """Whether no job can start now on a node in this state."""
    return bool(_UNAVAILABLE & set(re.split(r"[+*]", state))) or state.endswith("*")


def _nodes(report: SlurmEvidence) -> Iterable[Problem]:
    """Nodes on which no job can start now; a failure only if too few others are left."""
    out: dict[tuple[str, str], list[str]] = {}
    for node in report.nodes:
        state = node.get("State", "UNKNOWN")
        if is_unavailable(state):
            reason = node.get("Reason", "no reason is given").partition(" [")[0]
            out.setdefault((state, reason), []).append(node.get("NodeName", "?"))
    left = len(report.nodes) - sum(map(len, out.values()))
    verdict = "fail" if left < (_number(report.asked.get("nodes")) or 1) else "warn"
    for (state, reason), names in out.items():
        yield Problem(verdict, f"{folded_names(names)}: {state}: {reason}")


def _account(report: SlurmEvidence) -> Iterable[Problem]:
    """The user's account does not exist, or its limits and QOS rule out such a job."""
    if report.associations is None:
        return
    account, qos = report.asked.get("account", ""), report.asked.get("qos", "")
    own = list(dict.fromkeys(one.get("Account", "") for one in report.associations))
    enforced = "associations" in report.config.get("AccountingStorageEnforce", "")
    if not own:
        if enforced:
            yield Problem("fail", "the user has no account in Slurm, and none of its jobs would start")
        return
    if account and account not in own:
        listed = f"your accounts are {few(own, 6)}"
        yield Problem("fail" if enforced else "warn", f"account {account} is none of the user's", listed)
        return
    mine = [one for one in report.associations if not account or one.get("Account") == account]
    known = {name for one in mine for name in one.get("QOS", "").split(",") if name}
    if qos and known and qos not in known:
        yield Problem("fail", f"QOS {qos} is none of the account's", f"it has {few(sorted(known), 6)}")
    refused = [list(_exceeded_limits(one, report.asked)) for one in mine]
    if all(refused):
        yield Problem("fail", refused[0][0])


def _exceeded_limits(association: Mapping[str, str], asked: Mapping[str, str]) -> Iterable[str]:
    """Limits of one association of the user that rule out any job of the requested size."""
    for field in ("MaxJobs", "GrpJobs"):
        if association.get(field) == "0":
            yield f"the account may have no job ({field}=0)"
    nodes = _number(asked.get("nodes")) or 1
    gpus = nodes * (_number(asked.get("gpus-per-node")) or 0)
    for field, of in (("MaxTRES", "a job"), ("GrpTRES", "at once")):
        for name, noun, wanted in (("node", "node", nodes), ("gres/gpu", "GPU", gpus)):
            found = re.search(rf"(?:^|,){name}=([0-9]{{1,9}})(?:,|$)", association.get(field, ""))
            if found and int(found[1]) < wanted:
                yield f"the account may have {counted(int(found[1]), noun)} {of}, and {wanted} are asked for"


def _devices(report: SlurmEvidence) -> Iterable[Problem]:
    """Slurm gives out GPUs, but does not keep a job from using those of others."""
    if "gpu" not in report.config.get("GresTypes", ""):
        return
    plugin = report.config.get("TaskPlugin", "").replace("(null)", "") or "task/none"  # Slurm 22.05 prints (null)
    if "cgroup" not in plugin:
        yield Problem("warn", f"TaskPlugin is {plugin}: a job can use GPUs of others")
    elif report.config.get("ConstrainDevices", "yes") != "yes":
        yield Problem("warn", "cgroup.conf has no ConstrainDevices=yes: a job can use GPUs of others")


def _prolog(report: SlurmEvidence) -> Iterable[Problem]:
    """A Prolog without Alloc runs only at a node's first step, not when the node is allocated."""
    flags = report.config.get("PrologFlags", "")
    if report.config.get("Prolog", "(null)") != "(null)" and not re.search(r"Alloc|Contain", flags):
        yield Problem("warn", f"there is a Prolog, and PrologFlags ({flags or 'none'}) has no Alloc")


def _refused_job(report: SlurmEvidence) -> Iterable[Problem]:
    """Slurm refused the short job that tried it."""
    if report.refused:
        yield Problem("fail", *report.refused)


def _slurm_node(evidence: Evidence, name: str) -> Mapping[str, str]:
    nodes = evidence.manager.nodes if evidence.manager else ()
    return next((node for node in nodes if node.get("NodeName") == name), {})


def count_gpus(gres: str) -> int:
    """The number of GPUs in a node's ``Gres``, such as ``gpu:a100:4(S:0-1),gpu:2,shard:8``."""
    parts = re.sub(r"\([^)]*\)", "", gres).split(",")
    found = [part.split(":") for part in parts if part.split(":")[0] == "gpu"]
    counts = [_number(fields[-1]) for fields in found]
    return sum(1 if count is None else count for count in counts)


def _gpus(evidence: Evidence) -> Iterable[Finding]:
    """Nodes whose number of GPUs is not the one in Slurm's configuration (Gres)."""
    for entry, facts in evidence.facts:
        if any(gpu.mig for gpu in facts.gpus):
            continue  # Slurm counts their instances
        given = count_gpus(_slurm_node(evidence, entry.name).get("Gres", ""))
        there = max(facts.pci_nvidia, len(facts.gpus)) or facts.pci_amd
        if given != there:
            report = f"{there} {'is' if there == 1 else 'are'} seen"
            yield fail(entry.name, f"Slurm gives out {counted(given, 'GPU')} there (Gres), and {report}")


def _folders(evidence: Evidence) -> Iterable[Finding]:
    """Folders of a run that a node does not share with the login host, by the reason."""
    for report in evidence.hosts:
        wrong = evidence.manager.unshared.get(report.name, {}) if evidence.manager else {}
        for text in dict.fromkeys(wrong.values()):
            folders = ", ".join(folder for folder, why in wrong.items() if why == text)
            yield fail(report.name, f"{folders}: {text}")


def _temporary_folder(evidence: Evidence) -> Iterable[Finding]:
    """Warn of nodes on which a job's temporary files do not go to Slurm's TmpFS."""
    tmpfs = evidence.manager.config.get("TmpFS", "/tmp") if evidence.manager else "/tmp"  # noqa: S108 - Slurm's default
    for entry, facts in evidence.facts:
        used = facts.folder_variables.get("TMPDIR", "/tmp")  # noqa: S108 - what programs take without it
        if f"{used}/".startswith(f"{tmpfs.rstrip('/')}/"):
            continue
        yield warn(entry.name, f"Slurm's TmpFS is {tmpfs}, and a job's temporary files go to {used}")


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,9}", text) else None


def _check(name: str, title: str, judge: Callable[[Evidence], Iterable[Finding]], **more: str) -> Check:
    after = () if name == CONTROLLER else (CONTROLLER,)
    return Check(name=name, category=CATEGORY, title=title, judge=judge, needs=(SLURM,), after=after, **more)


CHECKS = (
    _check(
        CONTROLLER,
        "Slurm's controller answers the login host",
        _on_login_host(_controller),
        symptom="no job is taken, and none is told of",
        fix="ask who runs the cluster: `scontrol ping` says which controller is down",
    ),
    _check(
        "slurm-partition",
        "the partition is up and allows such a job",
        _on_login_host(_partition),
        symptom="a job waits for ever (PartitionDown, PartitionNodeLimit, PartitionConfig)",
        fix="choose another partition, or ask for less",
    ),
    _check(
        "slurm-nodes",
        "no node of the partition is drained or down",
        _on_login_host(_nodes),
        symptom="a job waits, or has fewer nodes to choose from",
        fix="ask who runs the cluster; `sinfo -R` shows who has drained them",
    ),
    _check(
        "slurm-account",
        "the user's account allows such a job",
        _on_login_host(_account),
        symptom="a job is refused, or waits for ever (InvalidAccount, InvalidQOS, AssocMaxNodePerJobLimit)",
        fix="set clusterddp_slurm_account, clusterddp_slurm_qos; `sacctmgr show associations user=$USER` lists them",
    ),
    _check(
        "slurm-devices",
        "a job sees its own GPUs alone",
        _on_login_host(_devices),
        symptom="jobs of others compute on the same GPU: out of memory, slow steps",
        fix="ask who runs the cluster for TaskPlugin=task/cgroup and ConstrainDevices=yes",
    ),
    _check(
        "slurm-prolog",
        "a node's prolog has run before a job's script begins",
        _on_login_host(_prolog),
        symptom="the first step hangs until the slowest node's prolog has run, or begins on a node that is not ready",
        fix="ask who runs the cluster for PrologFlags=Alloc",
    ),
    _check(
        "slurm-job",
        "Slurm gives a short job the nodes that are asked for",
        _on_login_host(_refused_job),
        symptom="the run would not begin either",
        fix="ask for less, or wait",
    ),
    Check(
        name="slurm-gpus",
        category=CATEGORY,
        title="Slurm counts the GPUs that a node has",
        judge=_gpus,
        needs=(SLURM_NODE,),
        symptom="GPUs that nobody gets, or a job that is given one that is not there",
        fix="ask who runs the cluster to correct Gres in slurm.conf and gres.conf",
    ),
    Check(
        name="slurm-folders",
        category=CATEGORY,
        title="nodes and login host share the folders of a run",
        judge=_folders,
        needs=(SLURM_NODE,),
        symptom="a job that ends at once, or of which nothing is heard: its code, or what its nodes tell, is elsewhere",
        fix="set clusterddp_slurm_shared: false, or clusterddp_state and clusterddp_workdir to folders that all share",
    ),
    Check(
        name="slurm-tmp",
        category=CATEGORY,
        title="temporary files go where Slurm has room for them",
        judge=_temporary_folder,
        needs=(SLURM_NODE,),
        symptom="the disk of the system is full while the node's scratch disk is empty",
        fix="set TMPDIR in clusterddp_setup to a folder below it",
    ),
)
