"""Output as files, and going on where earlier output ended."""

from __future__ import annotations

import errno
import json
import os
import resource
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import RunError, UsageError
from clusterddp.logs import save as logs_save
from clusterddp.logs.checked_frames import FilePart, Lines, LogHeader
from clusterddp.logs.merge import FrameArrived
from clusterddp.logs.render import JsonRenderer
from clusterddp.logs.resume import offsets_after, read_lines
from clusterddp.logs.save import Saver
from clusterddp.logs.selection import Position, Selection
from tests.unit.spool_writer import Writer, read

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.logs.merge import Event


def hello(host: str, attempt: int = 1, run: str = "r1") -> FrameArrived:
    return FrameArrived(host=host, frame=LogHeader(run=run, attempt=attempt, clock_error_ns=0))


def said(
    host: str, text: bytes, *, offset: int = 0, start: int = 0, local: int | None = 1, **more: Any
) -> FrameArrived:
    file = "agent.out" if local is None else f"{start}.{local}.out"
    part = FilePart(
        file=file,
        start=None if local is None else start,
        local_rank=local,
        stream="out",
        offset=offset,
        next=offset + len(text),
        time=10**9,
        **{"rank": None if local is None else 3, **more},
    )
    return FrameArrived(host=host, frame=Lines(part=part, body=text))


def save(folder: Path, *events: Event, run: str = "r1") -> Saver:
    saver = Saver(folder, run)
    saver.save(events)
    return saver


class TestSave:
    def test_each_workers_bytes_are_a_file_of_their_own(self, tmp_path: Path) -> None:
        folder = tmp_path / "a" / "b"
        saver = save(
            folder, hello("gpu01"), said("gpu01", b"a\rb\n"), said("gpu01", b"half", offset=4),
            said("gpu01", b"x\n", start=2), said("gpu01", b"torchrun\n", local=None),
            hello("gpu 2/b", 2), said("gpu 2/b", b"second\n"),
        )  # fmt: skip
        found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert json.loads(found.pop("run.json")) == {"run": "r1"}
        assert found == {
            "1.0/rank3-gpu01-1.out": b"a\rb\nhalf",
            "1.2/rank3-gpu01-1.out": b"x\n",
            "1/agent-gpu01.out": b"torchrun\n",
            "2.0/rank3-gpu%202%2Fb-1.out": b"second\n",
        }
        assert saver.summary() == f"26 bytes written to 4 files in {folder}"
        assert {path.stat().st_mode & 0o777 for path in folder.rglob("*")} == {0o600, 0o700}

    def test_a_second_time_goes_on_where_the_files_end(self, tmp_path: Path) -> None:
        save(tmp_path, hello("gpu-01"), said("gpu-01", b"abc"), said("gpu-01", b"t\n", local=None))
        again = Saver(tmp_path, "r1")
        assert again.offsets() == {1: {"gpu-01": {"0.1.out": 3, "agent.out": 2}}}
        again.save([hello("gpu-01"), said("gpu-01", b"def", offset=3)])
        assert (tmp_path / "1.0" / "rank3-gpu-01-1.out").read_bytes() == b"abcdef"

    def test_a_file_keeps_its_name_when_its_rank_becomes_known(self, tmp_path: Path) -> None:
        save(tmp_path, hello("h"), said("h", b"abc", rank=None))
        save(tmp_path, hello("h"), said("h", b"def", offset=3))
        assert [path.name for path in (tmp_path / "1.0").iterdir()] == ["unknown-h-1.out"]

    def test_what_the_host_dropped_is_a_hole_and_what_was_saved_before_stays(self, tmp_path: Path) -> None:
        save(tmp_path, hello("h"), said("h", b"early\n"))
        save(tmp_path, hello("h"), said("h", b"", offset=10, dropped=4), said("h", b"late\n", offset=10))
        assert (tmp_path / "1.0" / "rank3-h-1.out").read_bytes() == b"early\n\0\0\0\0late\n"

    def test_a_folder_is_one_runs(self, tmp_path: Path) -> None:
        save(tmp_path, hello("h"), said("h", b"abc"))
        with pytest.raises(RunError, match="holds the output of run r1; name another folder"):
            Saver(tmp_path, "r2")
        for text in ("{}", "[" * 100_000, '{"run": 1}'):
            (tmp_path / "run.json").write_text(text)
            with pytest.raises(RunError, match="a run that it does not name"):
                Saver(tmp_path, "r1")

    @pytest.mark.parametrize("text", ['{"lr": 3e-4, "epochs": 10}', "notes of mine"])
    def test_a_users_own_file_of_the_records_name_is_left_as_it_is(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(RunError, match=r"run\.json is not of a saved run; name another folder"):
            Saver(tmp_path, "r1")
        assert (tmp_path / "run.json").read_text() == text

    def test_a_record_that_a_full_disk_left_empty_is_written_again(self, tmp_path: Path) -> None:
        (tmp_path / "run.json").touch()
        Saver(tmp_path, "r1")
        assert json.loads((tmp_path / "run.json").read_text()) == {"run": "r1"}

    @pytest.mark.parametrize("place", ["1.0", "1.0/rank3-h-1.out", "run.json"])
    @pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe"])
    def test_nothing_is_written_through_what_somebody_has_put_there(
        self, tmp_path: Path, place: str, kind: str
    ) -> None:
        folder, outside, planted = tmp_path / "saved", tmp_path / "outside", tmp_path / "saved" / place
        outside.mkdir()
        (outside / "file").write_text("mine")
        planted.parent.mkdir(parents=True)
        if kind == "pipe":
            os.mkfifo(planted)
        else:
            target = outside if place == "1.0" else outside / "file"
            planted.symlink_to(target if kind == "link" else outside / "new")
        with pytest.raises(RunError, match=r"cannot be written|a run that it does not name"):
            save(folder, hello("h"), said("h", b"theirs"))
        assert {path.name: path.read_text() for path in outside.iterdir()} == {"file": "mine"}

    def test_a_file_that_takes_no_more_is_named(self, tmp_path: Path) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            with pytest.raises(RunError, match=r"rank3-h-1.out: cannot be written \(File too large\); make room there"):
                save(tmp_path, hello("h"), said("h", b"x" * 200))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def test_no_empty_record_is_left_where_it_cannot_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(logs_save, "write_at", full)
            with pytest.raises(RunError, match=r"run.json: cannot be written \(No space"):
                Saver(tmp_path, "r1")
        assert not [*tmp_path.iterdir()]
        save(tmp_path, hello("h"), said("h", b"x"))
        assert (tmp_path / "run.json").read_text() == '{"run": "r1"}\n'

    def test_a_spool_is_saved_byte_for_byte(self, tmp_path: Path) -> None:
        writer = Writer(tmp_path / "host")
        writer.start(1, 3)
        text = b"".join(b"\r%d%%" % n for n in range(5000)) + b"\xff\0\n" + b"no end"
        writer.say("0.1.out", text)
        writer.end()
        folder = tmp_path / "saved"
        for size in (0, 100, len(text)):  # a save that was cut anywhere goes on there
            frames = read(writer, partials=True, offsets={"0.1.out": size}).check_frames()
            folder.mkdir(exist_ok=True)
            saver = Saver(folder, "run1")
            saver.save([FrameArrived(host="h", frame=frame) for frame in frames])
            assert (folder / "0.0" / "rank3-h-1.out").read_bytes() == text
            (folder / "0.0" / "rank3-h-1.out").write_bytes(text[:100] if size == 0 else text)


class TestGoingOn:
    def lines(self, *texts: bytes) -> bytes:
        renderer = JsonRenderer()
        out = renderer.feed("h", hello("h").frame)
        offset = 0
        for text in texts:
            out += renderer.feed("h", said("h", text, offset=offset).frame)
            offset += len(text)
        return out + renderer.feed("h", said("h", b"torchrun\n", local=None).frame)

    def test_places_are_behind_the_last_line_of_each_file(self, tmp_path: Path) -> None:
        path = tmp_path / "lines.json"
        path.write_bytes(self.lines(b"one\n", b"two\r\n"))
        places = offsets_after(read_lines(path, "r1"))
        assert places == {1: {"h": {"0.1.out": 9, "agent.out": 9}}}
        selection = Selection(start=places[1])
        assert selection.args("/s", selection.resume_position("h", Position(offsets={"0.1.out": 20})))["offsets"] == {
            "0.1.out": 20,
            "agent.out": 9,
        }
        assert selection.resume_position("other", Position()).offsets == {}

    def test_a_line_that_was_cut_counts_as_not_there_also_when_more_was_appended(self, tmp_path: Path) -> None:
        path = tmp_path / "lines.json"
        first, second, agent = self.lines(b"one\n", b"two\n").splitlines(keepends=True)
        path.write_bytes(first + second[:30])
        assert offsets_after(read_lines(path, "r1")) == {1: {"h": {"0.1.out": 4}}}
        path.write_bytes(first + second[:30] + second + agent[:-1])
        assert offsets_after(read_lines(path, "r1")) == {1: {"h": {"0.1.out": 8}}}

    @pytest.mark.parametrize("text", [b"no json\n", b"[]\n", b'{"time": 1}\n'])
    def test_another_file_is_named(self, tmp_path: Path, text: bytes) -> None:
        path = tmp_path / "lines.json"
        path.write_bytes(self.lines(b"one\n") + text)
        with pytest.raises(UsageError, match="line 3 is none of `logs --json`"):
            list(read_lines(path, "r1"))

    def test_lines_of_another_run_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "lines.json"
        path.write_bytes(self.lines(b"one\n"))
        with pytest.raises(UsageError, match="line 1 is of run r1, not r2"):
            list(read_lines(path, "r2"))
