"""The state folder, whole files, and every path and lock of a spool."""

from __future__ import annotations

import grp
import json
import os
import pwd
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from clusterddp.remote.shared.run.spool_records import StopOrder
from clusterddp.remote.shared.schema.json_text import read_json
from clusterddp.remote.spool import supervisor_identity
from clusterddp.remote.spool.layout import Spool, all_spools
from clusterddp.remote.system import bootstrap, clock
from clusterddp.remote.system.bootstrap import (
    Refused,
    private_folder,
    remove_abandoned_temporaries,
    state_folder,
    write_json,
    write_private,
)
from tests.unit.plan_made import PLAN, made_spool

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")

HOUR = 3600 * 10**9  # ns


def mode(path: Path | str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestStateFolder:
    def test_the_default_is_in_the_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        assert state_folder(None) == str(tmp_path / ".clusterddp")
        assert mode(tmp_path / ".clusterddp") == 0o700

    def test_a_home_on_a_network_filesystem_is_avoided(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[str] = []
        monkeypatch.setattr(bootstrap, "filesystem_type", lambda _path: "nfs4")

        def make(path: str, *, alone: bool) -> str:
            assert alone
            made.append(path)
            return path

        monkeypatch.setattr(bootstrap, "private_folder", make)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert state_folder(None) == f"/var/tmp/clusterddp-{os.getuid()}" == made[0]

    def test_a_configured_one_may_begin_with_a_tilde(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        assert state_folder("~/deep/state") == str(tmp_path / "deep/state")

    def test_one_whose_path_is_too_long_is_refused_in_a_short_line(self, tmp_path: Path) -> None:
        with pytest.raises(Refused, match=r"path has \d+ bytes, and 1024 are the most: ") as caught:
            state_folder(str(tmp_path / "/".join(["x" * 240] * 17)))
        assert len(caught.value.message) < 200
        assert caught.value.remedy == "set clusterddp_state to a shorter path"

    def test_a_folder_open_to_others_is_closed(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o755)
        private_folder(str(tmp_path))
        assert mode(tmp_path) == 0o700

    @pytest.mark.parametrize("make", [lambda path: path.write_text(""), lambda path: path.symlink_to("/nowhere")])
    def test_what_is_no_folder_is_refused(self, tmp_path: Path, make: object) -> None:
        make(tmp_path / "state")  # type: ignore[operator]
        with pytest.raises(Refused, match="state") as caught:
            private_folder(str(tmp_path / "state"))
        assert "clusterddp_state" in caught.value.remedy

    def test_another_users_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "getuid", lambda: 4242)
        with pytest.raises(Refused, match="is not a folder of this user"):
            private_folder(str(tmp_path))

    def test_a_folder_that_others_use_is_left_as_it_is_and_gets_one_of_ours(self, tmp_path: Path) -> None:
        group = tmp_path / "group"
        group.mkdir()
        group.chmod(0o3775)
        own = group / f"clusterddp-{os.getuid()}"
        assert state_folder(str(group)) == str(own) == state_folder(str(group))
        assert (stat.S_IMODE(group.stat().st_mode), mode(own) & 0o777) == (0o3775, 0o700)

    def test_a_folder_where_others_can_replace_ours_is_refused(self, tmp_path: Path) -> None:
        group = tmp_path / "group"
        group.mkdir()
        group.chmod(0o777)
        for path in (group, group / "deep" / "state"):
            with pytest.raises(Refused, match=rf"^{group} can be written by other users, who could put") as caught:
                state_folder(str(path))
            assert caught.value.remedy.startswith(f"`chmod +t {group}`, or set clusterddp_state")
        assert mode(private_folder(str(group / "runs"))) == 0o700  # nothing is started from there

    @pytest.mark.skipif(os.getuid() != 0, reason="makes a folder of another user")
    def test_a_folder_below_another_users_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "theirs").mkdir(mode=0o755)
        os.chown(tmp_path / "theirs", 4242, 4242)
        with pytest.raises(Refused, match=r"theirs is another user's folder$"):
            state_folder(str(tmp_path / "theirs" / "state"))

    @pytest.mark.parametrize("members", [(), ("me",), ("me", "her")])
    def test_a_group_of_ones_own_is_nobody_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: tuple[str, ...]
    ) -> None:
        tmp_path.chmod(0o775)
        os.chown(tmp_path, -1, 4242 if os.getuid() == 0 else -1)
        account = pwd.struct_passwd(("me", "x", os.getuid(), 4242, "", "/", "/bin/sh"))
        monkeypatch.setattr(pwd, "getpwuid", lambda _uid: account)
        monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("me", "x", gid, list(members))))
        if "her" in members:
            with pytest.raises(Refused, match="can be written by other users"):
                state_folder(str(tmp_path / "state"))
        else:
            assert state_folder(str(tmp_path / "state")) == str(tmp_path / "state")

    @pytest.mark.skipif(os.getuid() != 0, reason="makes links of another user")
    def test_a_link_of_another_user_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir(mode=0o700)
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared").chmod(0o1777)
        for link in ("shared/state", "shared/deep"):
            (tmp_path / link).symlink_to(tmp_path / "mine")
            os.chown(tmp_path / link, 4242, 4242, follow_symlinks=False)
        for path in ("shared/state", "shared/deep/state"):
            with pytest.raises(Refused, match="is another user's link"):
                private_folder(str(tmp_path / path))
        assert not names(tmp_path / "mine")

    def test_a_link_of_ones_own_is_resolved_once(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir(mode=0o700)
        (tmp_path / "state").symlink_to("disk/state")
        (tmp_path / "disk/state").mkdir(mode=0o700)
        assert state_folder(str(tmp_path / "state")) == str(tmp_path / "disk/state")
        (tmp_path / "circle").symlink_to("circle")
        with pytest.raises(Refused, match="circle"):
            private_folder(str(tmp_path / "circle"))

    def test_the_filesystem_of_a_path(self) -> None:
        assert bootstrap.filesystem_type("/proc/self/status") == "proc"
        assert bootstrap.filesystem_type("/") not in ("", "proc")


class TestWholeFiles:
    def test_a_file_is_replaced_whole_and_private(self, tmp_path: Path) -> None:
        path = str(tmp_path / "value.json")
        write_json(path, {"a": 1})
        write_json(path, {"a": 2})
        assert read_json(path) == {"a": 2}
        assert (mode(path), names(tmp_path)) == (0o600, ["value.json"])

    def test_a_failed_write_leaves_the_old_file_and_no_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = str(tmp_path / "value")
        write_private(path, b"old")

        def full(_handle: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_private(path, b"new")
        assert (Path(path).read_bytes(), names(tmp_path)) == (b"old", ["value"])


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    """A spool as a start makes it, under a careless umask."""
    made = Spool.of(str(tmp_path / "state"), "r1", 2, "0-gpu-01")
    before = os.umask(0o000)
    try:
        assert made_spool(made, PLAN._replace(run="r1", host="gpu-01"))
    finally:
        os.umask(before)
    return made


class TestSpool:
    def test_its_place_tells_run_attempt_and_host(self, spool: Spool) -> None:
        assert (spool.run, spool.attempt, spool.host) == ("r1", 2, "gpu-01")
        assert spool.plan().run == "r1"

    def test_it_is_made_once(self, spool: Spool) -> None:
        assert made_spool(spool, PLAN._replace(run="other")) is False
        assert spool.plan().run == "r1"

    def test_all_of_it_is_private(self, spool: Spool, tmp_path: Path) -> None:
        paths = list((tmp_path / "state" / "runs").rglob("*"))
        assert len(paths) > 8
        wrong = [path for path in paths if mode(path) != (0o700 if path.is_dir() else 0o600)]
        assert not wrong
        assert mode(Path(spool.folder).parents[1]) == 0o700

    def test_the_first_reason_to_stop_stands_and_the_shorter_grace(self, spool: Spool) -> None:
        spool.write_stop_order("first", 30.0)
        spool.write_stop_order("second", 60.0)
        assert spool.stop_order() == StopOrder("first", 30.0)
        spool.write_stop_order("third", 0.0)
        assert spool.stop_order() == StopOrder("first", 0.0)

    def test_the_exit_record_takes_the_secrets_away(self, spool: Spool) -> None:
        write_private(spool.path("secrets.json"), b'{"TOKEN": "x"}')
        spool.write_exit("failed", 3, "because", survivors=[])
        assert not Path(spool.path("secrets.json")).exists()
        record = spool.exit_record()
        assert record
        assert (record.state, record.exit_code, record.reason, record.survivors) == ("failed", 3, "because", ())
        assert spool.events()[-1].kind == "ended"

    @pytest.mark.parametrize("step", [-HOUR, 0, HOUR])
    def test_the_exit_record_tells_by_how_much_the_clock_was_set(
        self, spool: Spool, step: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        booted = clock.boot_time()
        monkeypatch.setattr(supervisor_identity, "boot_time", lambda: booted)
        spool.write_supervisor()
        monkeypatch.setattr(supervisor_identity, "boot_time", lambda: booted + step)
        spool.write_exit("failed", 3, "because", survivors=[])
        record = spool.exit_record()
        assert record
        assert record.clock_step == step
        assert record.ended_unstepped == record.ended - step

    def test_the_clock_is_not_compared_with_another_boots(self, spool: Spool) -> None:
        record = {"pid": 1, "start_ticks": 1, "boot": "another", "boot_time": 1}
        write_json(spool.path("supervisor.json"), record)
        spool.write_exit("failed", 3, "because", survivors=[])
        assert [ended.clock_step for ended in [spool.exit_record()] if ended] == [0]

    def test_a_recorded_supervisor_counts_only_while_it_is_the_same_process(self, spool: Spool) -> None:
        from clusterddp.remote.system import procfs  # noqa: PLC0415 - beside its use

        record = {"pid": os.getpid(), "start_ticks": procfs.start_ticks(os.getpid()), "boot": procfs.boot_identity()}
        for changed, expected in (({}, os.getpid()), ({"start_ticks": 1}, None), ({"boot": "another"}, None)):
            write_json(spool.path("supervisor.json"), {**record, **changed})
            assert spool.supervisor() == expected

    def test_other_folders_among_the_spools_are_passed_over(self, spool: Spool, tmp_path: Path) -> None:
        runs = tmp_path / "state" / "runs"
        (runs / "r1" / ".nfs0001").mkdir()
        (runs / "notes").write_text("")
        assert [found.folder for found in all_spools(str(tmp_path / "state"))] == [spool.folder]
        assert list(all_spools(str(tmp_path / "nowhere"))) == []


class TestHalves:
    def test_what_a_killed_writer_left_goes_and_a_live_ones_stays(self, tmp_path: Path) -> None:
        with subprocess.Popen(["true"]) as gone:
            gone.wait()
        for name in (f"stop.json.{gone.pid}-0a.tmp", f"exit.json.{os.getpid()}-0b.tmp", "my.tmp", "plan.json"):
            (tmp_path / name).touch()
        remove_abandoned_temporaries(str(tmp_path))
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            f"exit.json.{os.getpid()}-0b.tmp",
            "my.tmp",
            "plan.json",
        ]


class TestLock:
    def test_it_is_held_by_one_and_ends_with_it(self, spool: Spool) -> None:
        assert not spool.alive()
        program = (
            "import sys; from clusterddp.remote.spool.layout import Spool\n"
            "spool = Spool(sys.argv[1]); print(spool.take_lock(), flush=True); sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program, spool.folder],
            cwd=Path(__file__).parents[4],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as holder:
            assert holder.stdout
            assert holder.stdout.readline() == "True\n"
            assert spool.alive()
            assert not spool.take_lock()
            holder.kill()
        assert not spool.alive()

    def test_who_only_asks_never_keeps_a_supervisor_from_its_lock(self, spool: Spool) -> None:
        done = threading.Event()
        Path(spool.path("lock")).touch(0o600)

        def ask() -> None:
            while not done.is_set():
                spool.alive()

        askers = [threading.Thread(target=ask) for _ in range(3)]
        for asker in askers:
            asker.start()
        try:
            for _ in range(20):
                assert spool.take_lock()
                spool.release_lock()
        finally:
            done.set()
            for asker in askers:
                asker.join()

    def test_who_asks_an_nfs_server_for_what_a_client_has_delegated_learns_that_it_may_be_held(
        self, spool: Spool
    ) -> None:
        """As on a host that is also the NFS server of the state folder; Samba takes such leases on files, too."""
        program = (
            "import fcntl, os, signal, sys; signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
            "lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); fcntl.fcntl(lock, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
            "print('leased', flush=True); sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program, spool.path("lock")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as client:
            assert client.stdout
            if client.stdout.readline() != "leased\n":
                pytest.skip("this file system has no leases")
            assert spool.alive()
            client.kill()
        assert not spool.alive()

    def test_asking_needs_no_right_to_write(self, spool: Spool) -> None:
        Path(spool.path("lock")).touch(0o400)
        assert not spool.alive()


def test_an_event_of_the_spool_is_json_with_a_time(spool: Spool) -> None:
    spool.event("agent_started", pid=7)
    record = json.loads(Path(spool.path("events.jsonl")).read_text())
    assert (record["event"], record["pid"]) == ("agent_started", 7)
    assert record["time"] > 0
