"""What a login host answers when a run is submitted there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterddp.errors import HelperError, UnreachableError
from clusterddp.launch.slurm.client.login_host import LoginHost


def submitting(out: str) -> LoginHost:
    host: Any = SimpleNamespace(name="login", hello=SimpleNamespace(state="/s"))
    host.upload = lambda *_, **__: {"status": 0, "out": out, "err": ""}
    return LoginHost(host)


def test_the_number_is_told_without_the_cluster() -> None:
    assert submitting("17;main\n").submit("r1", "", {}, {}) == "17"


@pytest.mark.parametrize("out", ["", "Welcome\n17\n", "17 --all"])
def test_what_is_no_number_of_a_job_is_an_error_of_the_host(out: str) -> None:
    with pytest.raises(HelperError, match="login: sbatch tells no job's number"):
        submitting(out).submit("r1", "", {}, {})


def test_a_program_that_does_not_end_is_worth_asking_again() -> None:
    host: Any = SimpleNamespace(name="login", hello=SimpleNamespace(state="/s"))
    host.call = lambda *_, **__: {"status": None, "out": "", "err": ""}
    with pytest.raises(UnreachableError, match="login: squeue did not end in time"):
        LoginHost(host).jobs(["17"])


def test_srun_takes_the_own_number_of_an_arrays_job_which_is_asked_for_once() -> None:
    asked: list[list[str]] = []
    host: Any = SimpleNamespace(name="login", hello=SimpleNamespace(state="/s"), memory={})

    def call(_operation: str, args: dict[str, list[str]], **_: object) -> dict[str, object]:
        asked.append(args["argv"])
        return {"status": 0, "out": "19\n", "err": ""}

    host.call = call
    login = LoginHost(host)
    assert [login.number_for_steps(one) for one in ("17", "17_2", "17_2")] == ["17", "19", "19"]
    assert asked == [["squeue", "--noheader", "--jobs=17_2", "--format=%A"]]
