"""`doctor`'s words that need no host: the list of checks, a log explained, results drawn."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.checks.catalog import TABLE
from clusterddp.checks.model import CheckResult
from clusterddp.cli.doctor_tables import print_doctor, print_summary
from clusterddp.cli.main import main
from tests.unit.cli_help import said

if TYPE_CHECKING:
    from pathlib import Path


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What a command that ends well writes on stdout."""
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *argv])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_list_shows_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split("\t") for line in printed(capsys, "--list").splitlines()]
    assert rows == [[check.name, check.category, check.title] for check in TABLE]


def test_a_name_that_is_no_check_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = said(capsys, "doctor", "--only", "shm,smh")
    assert (code, lines) == (2, ["'smh' is no check; `clusterddp doctor --list` shows them"])


def test_a_page_needs_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = said(capsys, "doctor", "--html", str(tmp_path / "none" / "page.html"))
    assert code == 2
    assert lines == [f"--html {tmp_path}/none/page.html: there is no folder {tmp_path}/none; make it, or name another"]


def test_a_log_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.log"
    log.write_bytes(b"step 1\n\xff\nOSError: [Errno 28] No space left on device\n")
    lines = printed(capsys, "--explain", str(log)).splitlines()
    assert lines[0] == f"{log}:3: disk-full: the disk is full, or your quota used up"
    assert lines[-1] == "    check: disk"
    (found,) = json.loads(printed(capsys, "--explain", str(log), "--json"))
    assert (found["name"], found["check"], found["line"], found["count"]) == ("disk-full", "disk", 3, 1)
    log.write_text("all is well\n")
    assert printed(capsys, "--explain", str(log)) == ""


def test_a_log_that_comes_through_a_pipe_is_explained_from_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    source, sink = os.pipe()  # as a shell's <(…)
    os.write(sink, b"OSError: [Errno 28] No space left on device\n")
    os.close(sink)
    try:
        assert f"/dev/fd/{source}:1: disk-full" in printed(capsys, "--explain", f"/dev/fd/{source}")
    finally:
        os.close(source)


def result(verdict: Any, hosts: int = 32) -> CheckResult:
    names = tuple(f"gpu{number:02}" for number in range(hosts))
    more: Any = {"symptom": "Bus error", "fix": "mount it [larger]"} if verdict in ("fail", "warn") else {}
    return CheckResult(name="shm", category="Machines", verdict=verdict, hosts=names, message="it is [so]", **more)


def show(results: list[CheckResult], *, verbose: bool) -> None:
    print_doctor(results, verbose=verbose)
    print_summary(results)


def test_what_is_well_is_one_line_and_hosts_are_drawn_together(capsys: pytest.CaptureFixture[str]) -> None:
    show([result("pass")], verbose=False)
    assert capsys.readouterr().out == "[✓] Machines  1 check\nnothing is wrong\n"
    show([result("fail"), result("skipped", 2)], verbose=False)
    assert capsys.readouterr().out.splitlines() == [
        "[✗] Machines",
        "    ✗ shm: gpu[00:31]: it is [so]",
        "      you would see: Bus error",
        "      fix: mount it [larger]",
        "1 of 1 categories need attention",
    ]


def test_a_category_that_was_skipped_does_not_look_well(capsys: pytest.CaptureFixture[str]) -> None:
    show([result("skipped")], verbose=False)
    assert capsys.readouterr().out.splitlines()[0] == "[–] Machines  1 skipped"
    show([result("skipped", 2), replace(result("pass"), name="limits")], verbose=False)
    assert capsys.readouterr().out.splitlines()[0] == "[✓] Machines  1 check, 1 skipped"


def test_hosts_that_a_category_left_out_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    left_out = CheckResult(name="shm", category="Machines", verdict="skipped", hosts=("gpu07", "gpu08"), message="")
    show([result("pass", 3), left_out], verbose=False)
    assert capsys.readouterr().out.splitlines()[0] == "[✓] Machines  1 check, without gpu07, gpu08"


def test_all_is_shown_with_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    show([result("unknown", 1), result("skipped", 2), result("pass", 3)], verbose=True)
    assert capsys.readouterr().out.splitlines() == [
        "[?] Machines",
        "    ? shm: gpu00: it is [so]",
        "    – shm: gpu00, gpu01: skipped it is [so]",
        "    ✓ shm: gpu00, gpu01, gpu02: it is [so]",
        "1 of 1 categories need attention",
    ]
