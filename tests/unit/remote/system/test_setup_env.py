"""The environment that setup lines leave. Real bash; not covered: login files of other users (integration)."""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.system.bootstrap import Refused
from clusterddp.remote.system.setup_env import environment_digest, setup_environment

if TYPE_CHECKING:
    from pathlib import Path

BASE = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "SHLVL": "1", "PWD": "/"}


def left_by(*lines: str) -> dict[str, str]:
    return setup_environment(lines, BASE)


def refusal(*lines: str) -> str:
    with pytest.raises(Refused) as caught:
        setup_environment(lines, BASE)
    return caught.value.message


def test_without_lines_no_shell_is_started_and_the_environment_is_the_sessions() -> None:
    assert setup_environment((), {"PATH": "/nowhere", "A": "1"}) == {"PATH": "/nowhere", "A": "1"}


def test_exports_are_left_and_plain_variables_are_not() -> None:
    env = left_by("export A='two\nlines'", "B=plain", 'export C="$B x"')
    assert (env["A"], env["C"]) == ("two\nlines", "plain x")
    assert "B" not in env


def test_a_variable_taken_away_is_gone() -> None:
    assert "GONE" not in setup_environment(("unset GONE",), {**BASE, "GONE": "1"})


def test_the_shells_own_variables_stay_as_the_session_had_them() -> None:
    env = left_by("cd /tmp")
    assert {name: env.get(name) for name in ("SHLVL", "PWD", "_", "OLDPWD")} == {
        "SHLVL": "1",
        "PWD": "/",
        "_": None,
        "OLDPWD": None,
    }


def test_lines_are_shell_and_may_span_several() -> None:
    assert left_by("if true; then", "  export A=inside", "fi")["A"] == "inside"


def test_one_entry_may_hold_several_lines() -> None:
    assert left_by("export A=1\nexport B=$A$A")["B"] == "11"


def test_data_in_lines_is_not_shell_of_ours() -> None:
    assert left_by("""export A='"; exit 3; $(touch /nonexistent) `'""")["A"] == '"; exit 3; $(touch /nonexistent) `'


def test_a_function_like_conda_activate_changes_the_environment() -> None:
    lines = ("conda() { export CONDA_PREFIX=/envs/$2 PATH=/envs/$2/bin:$PATH; }", "conda activate train")
    env = left_by(*lines)
    assert env["CONDA_PREFIX"] == "/envs/train"
    assert env["PATH"].startswith("/envs/train/bin:")


def test_exported_functions_survive() -> None:
    env = left_by('module() { echo "$1"; }', "export -f module")
    assert any(name.startswith("BASH_FUNC_module") for name in env)


def test_sourced_files_see_no_arguments_of_ours(tmp_path: Path) -> None:
    (tmp_path / "activate").write_text("export COUNT=$#\n")
    assert left_by(f"source {tmp_path}/activate")["COUNT"] == "0"


def test_a_failure_inside_a_sourced_file_or_function_is_that_codes_own_affair(tmp_path: Path) -> None:
    (tmp_path / "activate").write_text("false\nexport A=1\n")
    assert left_by(f"source {tmp_path}/activate", "f() { false; true; }", "f")["A"] == "1"


def test_output_of_the_lines_does_not_reach_the_environment() -> None:
    assert left_by("echo E; echo A=2; printf 'X=1\\0'", "export A=1")["A"] == "1"


def test_a_daemon_left_behind_is_not_waited_for() -> None:
    began = time.monotonic()
    env = left_by("sleep 30 & export AGENT=$!")
    try:
        assert time.monotonic() - began < 20
    finally:
        os.kill(int(env["AGENT"]), 9)


def test_the_lines_cannot_break_the_reading_back() -> None:
    assert left_by("export PATH=/nonexistent", "set -eu")["PATH"] == "/nonexistent"


def test_a_failing_line_is_named_with_its_status_and_its_last_words() -> None:
    message = refusal("export A=1", "load() { echo 'no module cuda/99' >&2; return 7; }", "load cuda/99", "export B=1")
    assert message == "setup line `load cuda/99` failed with status 7: no module cuda/99"


def test_a_line_that_ends_the_shell_is_refused_even_with_status_0() -> None:
    assert "ended the shell with status 0 before their end" in refusal("exit 0")


@pytest.mark.parametrize("line", ["if true", "echo 'open", "f() {"])
def test_lines_that_do_not_parse_are_said_to_be_no_shell(line: str) -> None:
    assert "not valid shell" in refusal(line)


def test_lines_that_never_end_are_killed_with_what_they_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(Refused, match="did not end within 1 s; last output: waiting"):
        setup_environment((f"echo waiting; sh -c 'echo $$ > {note}; exec sleep 600'",), BASE, timeout=1)
    with contextlib.suppress(ProcessLookupError), os.fdopen(os.pidfd_open(int(note.read_text()))) as process:
        assert select.select([process], [], [], 10)[0], "it still runs"


def test_a_host_without_bash_is_told_so() -> None:
    with pytest.raises(Refused, match="need bash"):
        setup_environment(("true",), {"PATH": "/nonexistent"})


def test_a_missing_home_folder_is_not_taken_for_a_missing_bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "gone"))
    with pytest.raises(Refused, match=r"home folder: .*gone") as refused:
        setup_environment(["export A=1"], dict(os.environ))
    assert refused.value.remedy == "create that folder on the host"


def test_the_digest_sees_what_bears_on_torch_and_nothing_else() -> None:
    one = environment_digest({**BASE, "SSH_CONNECTION": "10.0.0.1 5 10.0.0.2 22"})
    assert one == environment_digest({**BASE, "SSH_CONNECTION": "10.0.0.1 6 10.0.0.2 22"})
    assert one != environment_digest({**BASE, "LD_LIBRARY_PATH": "/opt/lib"})
