"""torch's own word on whether a host is an endpoint's, asked by the operation as a helper runs it."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.probes.rdzv_host import election
from tests.unit.operation import run_operation
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from pathlib import Path


def ask(*endpoints: str, **more: Any) -> Any:
    args = {"python": sys.executable, "job": {}, "endpoints": list(endpoints), **more}
    return run_operation(election, args)


def test_torchs_own_function_answers() -> None:
    need_torch()
    told = ask(socket.gethostname(), "localhost", "198.51.100.7")
    assert told == {"matches": {socket.gethostname(): True, "localhost": True, "198.51.100.7": False}, "error": None}


def fake_torch(folder: Path, source: str) -> dict[str, Any]:
    """An environment in which a torch with such a file stands first."""
    place = folder / "torch" / "distributed" / "elastic" / "rendezvous"
    place.mkdir(parents=True)
    for package in (folder / "torch", *(folder / "torch").rglob("*")):
        (package / "__init__.py").touch()
    (place / "utils.py").write_text(source)
    return {"job": {"env": {"PYTHONPATH": str(folder)}}}


def found_torch(folder: Path, source: str) -> dict[str, Any]:
    """The same, as the facts tell where it lies; a training interpreter that could be asked is not there."""
    fake_torch(folder, source)
    return {"torch": str(folder / "torch"), "python": "/bin/false"}


def test_the_helper_asks_torchs_file_itself(tmp_path: Path) -> None:
    source = "def _matches_machine_hostname(name):\n    return name == 'gpu01'\n"
    assert ask("gpu01", "gpu02", **found_torch(tmp_path, source)) == {
        "matches": {"gpu01": True, "gpu02": False},
        "error": None,
    }


@pytest.mark.parametrize("source", ["import torch.nowhere\n", "def f(x: int | nothing = 1): ...\n", "not Python\n"])
def test_a_file_that_the_helper_cannot_load_is_left_to_the_training_interpreter(tmp_path: Path, source: str) -> None:
    assert ask("gpu01", **found_torch(tmp_path, source))["error"] == "its python ended with status 1"


def test_a_lookup_that_the_helper_waits_for_in_vain_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterddp.remote.probes.rdzv_host.ANSWER_TIMEOUT", 0.1)
    source = "import threading\ndef _matches_machine_hostname(name):\n    threading.Event().wait()\n"
    assert ask("gpu01", **found_torch(tmp_path, source))["error"] == "no answer within 6 s"


def test_only_the_one_file_of_torch_is_loaded(tmp_path: Path) -> None:
    source = "import sys\ndef _matches_machine_hostname(name):\n    return 'torch' not in sys.modules\n"
    assert ask("gpu01", **fake_torch(tmp_path, source))["matches"] == {"gpu01": True}


def test_a_file_that_needs_the_rest_of_torch_is_loaded_with_it(tmp_path: Path) -> None:
    source = "from . import other\ndef _matches_machine_hostname(name):\n    return other.VALUE\n"
    env = fake_torch(tmp_path, source)
    (tmp_path / "torch" / "distributed" / "elastic" / "rendezvous" / "other.py").write_text("VALUE = True\n")
    assert ask("gpu01", **env)["matches"] == {"gpu01": True}


def test_a_torch_without_such_a_function_says_so(tmp_path: Path) -> None:
    told = ask("gpu01", **fake_torch(tmp_path, "pass\n"))
    assert told["matches"] == {}
    assert "AttributeError" in told["error"]


def test_a_lookup_that_fails_is_an_error_not_a_no(tmp_path: Path) -> None:
    source = "import socket\ndef _matches_machine_hostname(name):\n    raise socket.gaierror(-2, 'Name not known')\n"
    for where in (fake_torch, found_torch):
        assert (
            ask("gpu01", **where(tmp_path / where.__name__, source))["error"] == "gaierror: [Errno -2] Name not known"
        )


def test_an_interpreter_that_ends_without_answer_says_its_last_words() -> None:
    told = ask("gpu01", python="/bin/false")
    assert told == {"matches": {}, "error": "its python ended with status 1"}
