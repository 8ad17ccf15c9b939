"""Accounts, and limits that would keep a job waiting for ever; the verdict on a job that only Slurm's books know."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User
from tests.lab.slurm_accounts import tell
from tests.lab.system import wait_until
from tests.lean import lean_python, training_python
from tests.remedies import Remedy, remedy
from tests.slurm.seen import LOST, cancelled_in_the_end, nothing_is_left, thorough, user_of
from tests.slurm.test_doctor import found
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.slurm import Slurm

need_torch()
pytestmark = [pytest.mark.torch, thorough]

SPEAK = "import os\nprint('rank', os.environ['RANK'])\n"
STAY = WAIT + "\nprint('begun', flush=True)\nwait_for('/never')\n"


@pytest.fixture
def slurm(slurm_with_accounts: Slurm) -> Slurm:
    return slurm_with_accounts


@pytest.fixture
def user(slurm: Slurm, tmp_path: Path) -> User:
    return user_of(slurm, tmp_path, {"speak.py": SPEAK, "stay.py": STAY})


@contextlib.contextmanager
def limited(slurm: Slurm, limit: str, none: str, *whose: str) -> Iterator[None]:
    """A limit while the block runs; ``none`` takes it back. ``whose``: sacctmgr's words for that."""
    tell(slurm.controller, "modify", *whose, "set", limit)
    try:
        yield
    finally:
        tell(slurm.controller, "modify", *whose, "set", none)


USER, ACCOUNT, QOS = ("user", "trainer"), ("account", "vision"), ("qos", "normal")


@pytest.mark.parametrize(
    ("whose", "limit", "none", "words", "said"),
    [
        (USER, "MaxTRESPerJob=node=1", "MaxTRESPerJob=node=-1", (), "AssocMaxNodePerJobLimit"),
        (USER, "MaxWall=5", "MaxWall=-1", ("--time-limit", "20m"), "AssocMaxWallDurationPerJobLimit"),
        (USER, "MaxJobs=0", "MaxJobs=-1", (), "AssocMaxJobsLimit: account vision of trainer has MaxJobs=0"),
        (
            ACCOUNT,
            "GrpTRES=node=1",
            "GrpTRES=node=-1",
            (),
            "AssocGrpNodeLimit: account vision has GrpTRES node=1, and 2 are asked for",
        ),
        (
            ACCOUNT,
            "GrpTRESMins=cpu=20",
            "GrpTRESMins=cpu=-1",
            ("--time-limit", "30m"),
            "AssocGrpCPUMinutesLimit: account vision has GrpTRESMins cpu=20, and 62 are asked for",
        ),
        (QOS, "MaxTRESPerJob=node=1", "MaxTRESPerJob=node=-1", (), "QOSMaxNodePerJobLimit"),
        (
            QOS,
            "MaxTRESPerUser=node=1",
            "MaxTRESPerUser=node=-1",
            (),
            "QOSMaxNodePerUserLimit: QOS normal has MaxTRESPU node=1, and 2 are asked for",
        ),
    ],
)
def test_a_limit_that_a_job_alone_goes_beyond_is_told_by_run_and_nothing_is_left(
    user: User, slurm: Slurm, whose: tuple[str, ...], limit: str, none: str, words: tuple[str, ...], said: str
) -> None:
    with limited(slurm, limit, none, *whose):
        done = user.run("run", "--nnodes", "2", *words, "speak.py")
    assert done.code == 125, done.err
    assert f": {said}; ask for what the partition, your account and a dependency allow" in done.notes[-1]
    assert "Slurm would never start job" in done.notes[-1]
    nothing_is_left(slurm)


def test_a_limit_that_other_jobs_use_up_is_waited_for(user: User, slurm: Slurm) -> None:
    with cancelled_in_the_end(slurm), limited(slurm, "GrpJobs=1", "GrpJobs=-1", *ACCOUNT):
        other = slurm.run("sbatch", "--parsable", "--nodes=1", "--output=/dev/null", "--wrap=sleep 600").strip()
        wait_until("the other job runs", lambda: slurm.run("squeue", "-h", "-j", other, "-o", "%T") == "RUNNING\n")
        with user.start("run", "--nnodes", "2", "speak.py") as live:
            live.wait_for("is queued (AssocGrpJobsLimit", stream="err")
            slurm.run("scancel", other)
            done = live.end()
    assert done.code == 0, done.err
    assert sorted(done.lines) == ["[0 gpu01:0] rank 0", "[1 gpu02:0] rank 1"]
    nothing_is_left(slurm)


MY_ACCOUNT = remedy(
    "launch/slurm/client/login_host.py",
    "set clusterddp_slurm_account to one of yours (`sacctmgr show associations user=$USER`)",
)
MY_QOS = remedy("launch/slurm/client/login_host.py", "set clusterddp_slurm_qos to one of yours")
MINE = remedy(
    "checks/catalog/slurm.py",
    "set clusterddp_slurm_account, clusterddp_slurm_qos; `sacctmgr show associations user=$USER` lists them",
)


def associations(slurm: Slurm, told: Remedy, said: str) -> str:
    """What the command that a remedy tells prints on the login host."""
    (command,) = told.commands(said)
    return slurm.run("bash", "-c", f"USER=$(id -un); {command}")


@pytest.mark.parametrize(
    ("variables", "said", "told", "mended"),
    [
        (
            {"clusterddp_slurm_account": "nobodys"},
            "Invalid account or account/partition combination specified",
            MY_ACCOUNT,
            {"clusterddp_slurm_account": "vision"},
        ),
        ({"clusterddp_slurm_qos": "high"}, "Invalid qos specification", MY_QOS, {"clusterddp_slurm_qos": "normal"}),
    ],
    ids=["account", "qos"],
)
def test_an_account_or_qos_of_others_is_refused_in_one_line_and_one_of_ones_own_is_taken(
    user: User, slurm: Slurm, variables: dict[str, object], said: str, told: Remedy, mended: dict[str, object]
) -> None:
    slurm.write_inventory({"clusterddp_python": lean_python(), **variables}, user.folder / "inventory.yaml")
    done = user.run("run", "--nnodes", "1", "speak.py")
    assert done.code == 125, done.err
    assert f"Slurm refuses the job: {said}; " in done.notes[-1]
    assert told.found(done.notes[-1])
    if told == MY_ACCOUNT:
        assert "vision" in associations(slurm, told, done.notes[-1])
    nothing_is_left(slurm)
    slurm.write_inventory({"clusterddp_python": lean_python(), **mended}, user.folder / "inventory.yaml")
    done = user.run("run", "--nnodes", "1", "speak.py")
    assert done.code == 0, done.err
    nothing_is_left(slurm)


def test_the_check_of_the_account_passes_with_another_that_the_told_command_lists(user: User, slurm: Slurm) -> None:
    other, mine = ("account=speech",), ("user", "where", "name=trainer", "account=vision")
    words = ("doctor", "--nnodes", "2", "--only", "slurm-account")
    variables = {"clusterddp_python": training_python(), "clusterddp_slurm_account": "vision"}
    slurm.write_inventory(variables, user.folder / "inventory.yaml")
    with limited(slurm, "GrpTRES=node=1", "GrpTRES=node=-1", *mine):
        tell(slurm.controller, "add", "account", "speech", "cluster=lab")
        tell(slurm.controller, "add", "user", "trainer", *other)
        try:
            shown = user.run(*words)
            assert shown.code == 1, shown.out + shown.err
            assert "speech" in associations(slurm, MINE, " ".join(shown.out.split()))
            mended = {**variables, "clusterddp_slurm_account": "speech", "clusterddp_slurm_qos": "normal"}
            slurm.write_inventory(mended, user.folder / "inventory.yaml")
            shown = user.run(*words)
            assert shown.code == 0, shown.out + shown.err
        finally:
            tell(slurm.controller, "delete", "user", "where", "name=trainer", *other)
            tell(slurm.controller, "delete", "account", "where", "name=speech")


def test_as_many_jobs_as_an_account_may_submit_are_told(user: User, slurm: Slurm) -> None:
    with limited(slurm, "MaxSubmitJobs=0", "MaxSubmitJobs=-1", *USER):
        done = user.run("run", "--nnodes", "1", "speak.py")
    assert done.code == 125, done.err
    assert "Slurm refuses the job: Job violates accounting/QOS policy" in done.notes[-1]
    assert "; a limit of your account or QOS: `sacctmgr show associations user=$USER`" in done.notes[-1]


def test_the_doctor_tells_accounts_and_limits_without_and_with_a_job(user: User, slurm: Slurm) -> None:
    slurm.write_inventory({"clusterddp_python": training_python()}, user.folder / "inventory.yaml")
    words = ("--nnodes", "2", "--only", "slurm-account,slurm-job")
    with limited(slurm, "GrpTRES=node=1", "GrpTRES=node=-1", *USER):
        told = found(user, *words)
    assert told["slurm-account"][::2] == ("fail", "the account may have 1 node at once, and 2 are asked for")
    with limited(slurm, "GrpTRES=node=1", "GrpTRES=node=-1", *ACCOUNT):
        told = found(user, *words, "--skip", "Machines,Network")
    why = "AssocGrpNodeLimit: account vision has GrpTRES node=1, and 2 are asked for"
    assert told["slurm-job"][::2] == ("fail", f"Slurm would never start such a job: {why}")
    slurm.write_inventory(
        {"clusterddp_python": training_python(), "clusterddp_slurm_account": "nobodys"}, user.folder / "inventory.yaml"
    )
    told = found(user, *words)
    assert told["slurm-account"][::2] == ("fail", "account nobodys is none of the user's")
    nothing_is_left(slurm)


def test_a_run_whose_job_slurm_has_forgotten_has_its_verdict_from_the_books(user: User, slurm: Slurm) -> None:
    words = ("run", "--nnodes", "2", "--detach", "stay.py")
    lost = user.run(*words).lines[0]
    user.hear(lost, "begun", times=2)
    job = user.status(lost)["job"]
    slurm.compute[1].power_off()
    forgotten(slurm, job)
    slurm.boot(slurm.compute[1])
    slurm.wait_idle()
    slurm.run("sbatch", "--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=sleep 600")
    with cancelled_in_the_end(slurm):
        taken = user.run(*words).lines[0]
        job = user.status(taken)["job"]
        slurm.controller.run(["scancel", job], user="root")
        forgotten(slurm, job)
    for run, code, said in ((lost, 125, LOST), (taken, 143, "Slurm says CANCELLED by 0")):
        done = user.run("wait", run)
        assert (done.code, done.notes[-1].removeprefix(f"run {run}: ")) == (code, said)
        assert user.status(run)["exit_code"] == code
    nothing_is_left(slurm)


def forgotten(slurm: Slurm, job: str) -> None:
    """Return when squeue knows nothing of a job any more, and sacct that it has ended."""
    gone = f"! squeue --noheader --states=all --format=%i | grep -qx {job}"
    ended = f"sacct -nPX --format=State --jobs={job} | grep -qE 'NODE_FAIL|CANCELLED'"
    argv = ["sh", "-c", f"until {gone} && {ended}; do sleep 0.5; done"]
    slurm.controller.run(argv, timeout=120)
