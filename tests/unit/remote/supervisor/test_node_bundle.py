"""A node's part of a bundle: from a spool that the test wrote, as an outsider might have left it."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterddp.remote.shared.bundle.archive import unpack
from clusterddp.remote.shared.bundle.bundle_records import INDEX
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.spool.quoted import MAX_QUOTED, drop_secrets, keep_secrets, quotable
from clusterddp.remote.supervisor import node_bundle
from clusterddp.remote.supervisor.node_bundle import BundleParts, bundle, save
from tests.lab.system import wait_until
from tests.unit.operation import run_operation
from tests.unit.plan_made import plan_text
from tests.unit.spool_writer import Writer

DECLARED, NAMED, OF_ARGV, OF_HOST = "declared-secret-1", "named-secret-2", "argv-secret-3", "host-secret-4"
ALL = (DECLARED, NAMED, OF_ARGV, OF_HOST)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    made = Writer(tmp_path)
    made.start(0, 3)
    made.write("0.0.out", b"step 1\n")
    return made


def asked(*writers: Writer, room: int = 1 << 20, machine: bool = False) -> tuple[dict[str, str], dict[str, Any]]:
    """The texts by name, and the index."""
    request = {"spools": [str(writer.folder) for writer in writers], "room": room, "machine": machine}
    answer = run_operation(bundle, request)
    texts = {one.name: one.body.decode() for one in unpack(base64.b64decode(answer["archive"]))}
    index = json.loads(texts.pop(INDEX))
    assert [part["name"] for part in index["parts"]] == list(texts)
    return texts, {**index, "hidden": answer["hidden"], "missing": dict(index["missing"])}


def note(index: dict[str, Any], name: str) -> str:
    return str(next(part["note"] for part in index["parts"] if part["name"] == name))


def test_records_and_outputs_are_in_it(writer: Writer) -> None:
    writer.write("0.0.err", b"")
    writer.write("agent.out", b"torchrun says\n")
    (writer.folder / "errors").mkdir()
    (writer.folder / "errors" / "0.0.json").write_text('{"message": "no"}')
    (writer.folder / "control.key").write_text("never")
    texts, index = asked(writer)
    assert list(texts) == [
        "events.jsonl", "plan.json", "errors/0.0.json", "outputs/start-0/rank3-0.out", "outputs/agent.out",
    ]  # fmt: skip
    assert texts["outputs/start-0/rank3-0.out"] == "step 1\n"
    assert list(index["missing"]) == ["kernel messages, nvidia-smi"]


def test_an_output_is_cut_from_the_front_at_a_line_and_that_is_said(writer: Writer) -> None:
    writer.write("0.0.err", b"".join(b"line %06d\n" % number for number in range(10_000)))
    texts, index = asked(writer, room=3000)
    lines = texts["outputs/start-0/rank3-0.err"].splitlines()
    assert lines[-1] == "line 009999"
    assert 240 < len(lines) < 250
    assert {len(line) for line in lines} == {11}
    assert note(index, "outputs/start-0/rank3-0.err").endswith("KiB of 117 KiB")
    assert texts["outputs/start-0/rank3-0.out"] == "step 1\n"
    assert note(index, "outputs/start-0/rank3-0.out") == ""


@pytest.mark.parametrize(("more", "noted"), [(1, False), (10_000, True)])
def test_what_a_live_worker_prints_before_its_listed_output_is_read_cuts_no_line(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, more: int, *, noted: bool
) -> None:
    def grows(spool: str, limit: int) -> int:
        writer.write("0.0.out", b"step 1\n" + b"step 2\n" * more)
        return quotable(spool, limit)

    monkeypatch.setattr(node_bundle, "quotable", grows)
    texts, index = asked(writer)
    name = "outputs/start-0/rank3-0.out"
    assert {*texts[name].splitlines()} == ({"step 2"} if noted else {"step 1", "step 2"})
    assert note(index, name).startswith("the last ") is noted


def test_a_progress_bar_is_cut_at_a_redraw(writer: Writer) -> None:
    writer.write("0.0.err", b"".join(b"\r %05d" % number for number in range(1000)))
    texts, _ = asked(writer, room=700)
    assert texts["outputs/start-0/rank3-0.err"].startswith(" 00")


def test_the_newest_start_has_the_most_room(writer: Writer) -> None:
    for start in range(3):
        writer.write(f"{start}.0.err", b"x\n" * 4000)
        writer.start(0, 3, start)
    texts, _ = asked(writer, room=4000)
    sizes = [len(texts[f"outputs/start-{start}/rank3-0.err"]) for start in range(3)]
    assert sizes[2] > 1.5 * sizes[1] > sizes[0] > 0
    assert sum(sizes) <= 4000


def secret_plan() -> str:
    plan = json.loads(plan_text())
    plan["env"]["API_KEY"] = NAMED
    plan["record"]["argv"] = ["--token", OF_ARGV]
    return json.dumps(plan)


@pytest.mark.parametrize("over", [False, True])
def test_no_secret_is_in_it(writer: Writer, monkeypatch: pytest.MonkeyPatch, *, over: bool) -> None:
    monkeypatch.setenv("SOME_PASSWORD", OF_HOST)
    (writer.folder / "plan.json").write_text(secret_plan())
    keep_secrets(str(writer.folder), json.dumps({"FOO": DECLARED}).encode())
    said = " ".join(ALL)
    for name in ("0.0.out", "0.0.err", "agent.out"):
        writer.write(name, f"{said}\nhttps://u:hunter2@h {base64.b64encode(DECLARED.encode()).decode()}\n".encode())
    (writer.folder / "errors").mkdir()
    (writer.folder / "errors" / "0.0.json").write_text(json.dumps({"message": said}))
    (writer.folder / "supervisor.log").write_text(f"OTHER_TOKEN=abcdefgh {NAMED}\n")
    if over:
        drop_secrets(str(writer.folder))
    texts, index = asked(writer)
    whole = json.dumps(texts)
    for value in (*ALL, "hunter2", "abcdefgh", base64.b64encode(DECLARED.encode()).decode()):
        assert value not in whole
    assert texts["outputs/start-0/rank3-0.out"].count("********") == 6
    assert {NAMED, OF_ARGV, OF_HOST} <= {*index["hidden"]}
    assert DECLARED not in index["hidden"]


def test_a_secret_that_an_exceptions_record_escapes_is_struck(writer: Writer) -> None:
    (writer.folder / "errors").mkdir()
    said = 'bad config {"api_key": "sk-abc\u00e9def"}'
    (writer.folder / "errors" / "0.0.json").write_text(json.dumps({"exc_message": said, "line": 5}))
    (writer.folder / "errors" / "1.0.json").write_text(json.dumps({"exc_message": said})[:-2])
    texts, _ = asked(writer)
    assert json.loads(texts["errors/0.0.json"]) == {"exc_message": 'bad config {"api_key": "********"}', "line": 5}
    assert "sk-" not in texts["errors/1.0.json"]


def test_of_a_secret_cut_in_half_by_an_exceptions_record_nothing_stays(writer: Writer) -> None:
    keep_secrets(str(writer.folder), json.dumps({"FOO": DECLARED}).encode())
    (writer.folder / "errors").mkdir()
    cut = f"said {DECLARED[:9]}… that"
    (writer.folder / "errors" / "0.0.json").write_text(json.dumps({"exc_message": cut}))
    texts, _ = asked(writer)
    assert json.loads(texts["errors/0.0.json"]) == {"exc_message": "said ********… that"}


def test_a_secret_at_the_place_where_the_end_begins_is_struck(writer: Writer) -> None:
    keep_secrets(str(writer.folder), json.dumps({"FOO": DECLARED}).encode())
    writer.write("0.0.err", DECLARED.encode() * 200)
    texts, _ = asked(writer, room=507)
    assert "secret" not in texts["outputs/start-0/rank3-0.err"]


def test_of_a_run_with_secrets_that_is_over_only_what_was_compared_is_there(writer: Writer) -> None:
    keep_secrets(str(writer.folder), json.dumps({"FOO": DECLARED}).encode())
    writer.write("0.0.err", b"y\n" * MAX_QUOTED)
    drop_secrets(str(writer.folder))
    texts, index = asked(writer)
    assert MAX_QUOTED - 4 <= len(texts["outputs/start-0/rank3-0.err"]) <= MAX_QUOTED
    assert "of 64 KiB" in note(index, "outputs/start-0/rank3-0.err")
    (writer.folder / "quoted").rename(writer.folder / "quoting")  # as a full disk would have left it
    texts, index = asked(writer)
    assert "outputs/start-0/rank3-0.err" not in texts
    assert "not compared" in index["missing"]["outputs/start-0/rank3-0.err"]


def test_no_link_is_followed_and_no_pipe_blocks(writer: Writer, tmp_path: Path) -> None:
    private = tmp_path / "id_rsa"
    private.write_text("PRIVATE")
    (writer.logs / "0.1.out").symlink_to(private)
    os.mkfifo(writer.logs / "0.2.out")
    os.mkfifo(writer.folder / "supervisor.log")
    (writer.folder / "peers.json").symlink_to(private)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "0.0.json").write_text("PRIVATE")
    (writer.folder / "errors").symlink_to(elsewhere)
    texts, _ = asked(writer)
    assert "PRIVATE" not in json.dumps(texts)
    assert "outputs/start-0/rank3-0.out" in texts


def test_hostile_names_and_sizes_take_nothing_from_the_others(writer: Writer) -> None:
    errors = writer.folder / "errors"
    errors.mkdir()
    (errors / "a\nb\x1b[2J.json").write_text("{}")
    for number in range(20):
        (errors / f"{number}.json").write_text("x" * 150_000)
    with (writer.folder / "events.jsonl").open("a") as events:
        events.write("{}\n" * 80_000)
    texts, index = asked(writer)
    assert sum(map(len, texts.values())) < node_bundle.MAX_OTHERS + 1000
    assert note(index, "events.jsonl") == "the last 192 KiB"
    assert "a file" in index["missing"]
    assert any("larger than the room" in why for why in index["missing"].values())
    assert texts["outputs/start-0/rank3-0.out"] == "step 1\n"


def test_a_damaged_plan_is_said_to_be_missing(writer: Writer) -> None:
    (writer.folder / "plan.json").write_text("{")
    texts, index = asked(writer)
    assert "plan.json" not in texts
    assert "plan.json" in index["missing"]


def test_earlier_attempts_come_behind(writer: Writer, tmp_path: Path) -> None:
    earlier = Writer(tmp_path / "earlier")
    earlier.write("0.0.out", b"before\n")
    texts, _ = asked(writer, earlier)
    assert texts["attempt-0/outputs/start-0/rankunknown-0.out"] == "before\n"
    assert texts["outputs/start-0/rank3-0.out"] == "step 1\n"


def test_what_a_host_has_written_itself_is_brought_along(writer: Writer) -> None:
    spool = Spool(str(writer.folder))
    (writer.folder / "bundles").mkdir(mode=0o700)
    (writer.folder / "bundles" / "1.tar.gz").write_bytes(b"no archive")
    path = save(spool, {"why": lambda parts: parts.add("why.json", "why", '{"state": "hung"}')})
    assert Path(path).stat().st_mode & 0o777 == 0o600
    writer.write("0.0.out", b"step 2\n")
    texts, index = asked(writer)
    (kept,) = [name for name in texts if name.startswith("saved-") and name.endswith("/why.json")]
    assert json.loads(texts[kept]) == {"state": "hung"}
    assert texts[kept.replace("why.json", "outputs/start-0/rank3-0.out")] == "step 1\n"
    assert index["missing"]["saved-19700101T000000Z"] == "it is no gzip archive"
    for _ in range(5):
        save(spool, {})
    assert len(node_bundle.saved_names(spool)) == node_bundle.MAX_SAVED


def test_the_kernels_messages_and_nvidia_smi_are_asked(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, script in (
        ("journalctl", "echo 'NVRM: Xid (PCI:0000:07:00): 79'"),
        ("nvidia-smi", '[ "$1" ] && exit 9; echo gpu'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    texts, index = asked(writer, machine=True)
    assert texts["kernel.txt"] == "NVRM: Xid (PCI:0000:07:00): 79\n"
    assert texts["nvidia-smi.txt"] == "gpu\n"
    assert index["missing"] == {"nvidia-smi -q": "nvidia-smi failed with status 9"}


def saved(writer: Writer) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of the newest archive that the host has written itself, and what it says is missing."""
    for name in node_bundle.saved_names(Spool(str(writer.folder)))[:1]:
        texts = {one.name: one.body.decode() for one in unpack((writer.folder / "bundles" / name).read_bytes())}
        return texts, dict(json.loads(texts.pop(INDEX))["missing"])
    return {}, {}


def test_a_part_that_cannot_be_had_takes_none_of_the_others(writer: Writer) -> None:
    def fails(_parts: BundleParts) -> None:
        raise OSError("no such worker")

    save(Spool(str(writer.folder)), {"traces": fails, "stacks": lambda parts: parts.add("stacks.txt", "", "at 7")})
    texts, missing = saved(writer)
    assert (texts["stacks.txt"], missing) == ("at 7", {"traces": "no such worker"})


def test_a_host_that_is_ended_while_nvidia_smi_hangs_has_written_what_was_there(writer: Writer, tmp_path: Path) -> None:
    def pending() -> list[str]:
        return [what for what, why in saved(writer)[1].items() if why == node_bundle.NO_TIME]

    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tmp_path / "nvidia-smi").chmod(0o700)
    code = f"import sys; from {node_bundle.__name__} import main; main(sys.argv[1:])"
    env = {**os.environ, "PATH": f"{tmp_path}:/bin:/usr/bin"}
    with subprocess.Popen([sys.executable, "-c", code, str(writer.folder)], env=env) as process:
        wait_until("all but that is written", lambda: pending() == ["nvidia-smi"])
        process.kill()
    texts, _ = saved(writer)
    assert pending() == ["nvidia-smi"]
    assert texts["outputs/start-0/rank3-0.out"] == "step 1\n"
    assert {"traces.json", "stacks.txt"} <= {*texts}


def test_files_that_are_gone_are_said_to_be(tmp_path: Path) -> None:
    answer = run_operation(bundle, {"spools": [str(tmp_path / "none")], "room": 1, "machine": False})
    (index,) = unpack(base64.b64decode(answer["archive"]))
    assert json.loads(index.body)["missing"][0] == ["records and outputs", "the run's files are gone from this host"]
