"""What `top` shows: rates of two answers, JSON, OpenMetrics, and times of several looks at ranks."""

from __future__ import annotations

import json
import re
import stat
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.shared.collectives.hang_judge import UNDECIDED
from clusterddp.remote.shared.collectives.lateness import IN_TURN, NOBODY, LateRanks
from clusterddp.remote.shared.probes.usage_records import NicCounters
from clusterddp.runs import openmetrics
from clusterddp.runs.top_looks import HostLook
from clusterddp.runs.watch_hosts import CallHistory
from tests.unit.runs.top_made import CALLED_US, GPU, MB, look, pace, usage

if TYPE_CHECKING:
    from pathlib import Path

_SERIES = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\\n]|\\[\\n"])*",?)+)\})? (\S+)')


def test_two_answers_give_rates() -> None:
    host = HostLook(name="gpu00", usage=usage(12), before=usage(2))
    assert (host.cpu, host.disk_rates) == (0.5, (5 * MB, 2 * MB))
    assert [(nic.name, nic.received, nic.sent) for nic in host.nics] == [
        ("mlx5_0:1", 900 * MB, 800 * MB), ("eth0", MB, 0),
    ]  # fmt: skip
    assert host.memory_used == 48 * 10**9


@pytest.mark.parametrize("before", [None, usage(12), usage(40)])
def test_without_an_earlier_answer_of_this_boot_there_are_none(before: object) -> None:
    host = HostLook(name="gpu00", usage=usage(12), before=before)  # type: ignore[arg-type]
    assert (host.cpu, host.disk_rates, host.nics) == (None, (None, None), ())
    json.dumps(host.to_json())


def test_a_counter_that_began_anew_counts_as_standing_still() -> None:
    nics = (NicCounters("eth0", 0, 0), NicCounters("new0", 9, 9))
    host = HostLook(name="gpu00", usage=usage(12, nics=nics, disk_read=0), before=usage(2))
    assert [(nic.name, nic.received) for nic in host.nics] == [("eth0", 0)]
    assert host.disk_rates == (0, 2 * MB)


def test_the_object_has_what_the_page_says() -> None:
    value = json.loads(json.dumps(look().to_json()))
    assert set(value) == {
        "time", "run", "name", "state", "started", "time_left", "late", "ranks", "hosts", "notices",
    }  # fmt: skip
    assert value["late"]["sentence"].startswith("rank 1 (gpu01:0) is late in each step: 10.0 ms (median)")
    assert [rank["late_ms"] for rank in value["ranks"]] == [0.0, 10.04]
    assert [host["error"] for host in value["hosts"]] == [None, None, "no answer for 20 s"]
    assert value["hosts"][0]["gpus"][0]["processes"][0]["user"] == "alice"
    assert value["hosts"][2]["cpu"] is None


@pytest.mark.parametrize(
    ("late", "sentence"),
    [
        (
            LateRanks(UNDECIDED, reason="too few steps were seen yet"),
            "who is late is undecided: too few steps were",
        ),
        (LateRanks(NOBODY, steps=40), "no rank is late (40 steps)"),
        (LateRanks(IN_TURN, (0, 1), 12.0, 1.0, 40), "ranks 0 (gpu00:0), 1 (gpu01:0) are late in turn: the last one of"),
        (LateRanks("always", (1, 7), 12.0, 1.0, 40), "ranks 1 (gpu01:0), 7 are late in each step: 12.0 ms"),
        (None, ""),
    ],
)
def test_who_is_late_in_a_sentence(late: LateRanks | None, sentence: str) -> None:
    found = look(late=late).sentence
    assert found.startswith(sentence)
    assert bool(found) == bool(sentence)


def families(text: str) -> dict[str, list[tuple[str, float]]]:
    """The samples of each family; the text is as the format wants it."""
    *lines, end = text.removesuffix("\n").split("\n")
    assert end == "# EOF"
    found: dict[str, list[tuple[str, float]]] = {}
    for line in lines:
        if line.startswith("# "):
            _, kind, name, rest = line.split(" ", 3)
            assert kind in ("HELP", "TYPE", "UNIT")
            if kind == "HELP":
                assert name not in found
                found[name] = []
            assert name == list(found)[-1]
            assert kind != "TYPE" or rest == "gauge"
            assert kind != "UNIT" or name.endswith(f"_{rest}")
            continue
        match = _SERIES.fullmatch(line)
        assert match, line
        assert match[1] == list(found)[-1]
        found[match[1]].append((match[2] or "", float(match[3])))
    assert all(len({labels for labels, _ in rows}) == len(rows) > 0 for rows in found.values())
    return found


def test_openmetrics_have_what_is_known() -> None:
    found = families(openmetrics.as_text(look()))
    assert found["clusterddp_host_up"] == [('host="gpu00"', 1), ('host="gpu01"', 1), ('host="gpu02"', 0)]
    assert found["clusterddp_host_cpu_ratio"] == [('host="gpu00"', 0.5)]
    assert found["clusterddp_gpu_busy_ratio"][0] == (f'host="gpu00",gpu="0",uuid="{GPU.uuid}"', 0.97)
    assert [value for _, value in found["clusterddp_rank_late"]] == [0, 1]
    assert found["clusterddp_rank_lateness_seconds"][1][1] == pytest.approx(0.01004)
    assert found["clusterddp_run_time_left_seconds"] == [('run="33n7fac6he",name="night"', 3582.8)]
    assert "alice" not in openmetrics.as_text(look())


def test_openmetrics_without_a_run_or_of_hostile_names() -> None:
    nics = tuple(NicCounters(name, 1, 1) for name in ('a"b\\c\nd', "eth0", "eth0"))
    host = HostLook(name="gpu00", usage=usage(12, nics=nics, gpus=(GPU, GPU)), before=usage(2, nics=nics))
    found = families(openmetrics.as_text(look(run=None, ranks=(), late=None, hosts=(host,))))
    assert found["clusterddp_host_network_sent_bytes_per_second"] == [
        ('host="gpu00",device="a\\"b\\\\c\\nd"', 0), ('host="gpu00",device="eth0"', 0),
    ]  # fmt: skip
    assert not any(name.startswith(("clusterddp_rank", "clusterddp_run")) for name in found)


def test_the_file_is_replaced_as_a_whole_and_readable(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    file = tmp_path / "node" / "clusterddp.prom"
    file.parent.mkdir()
    file.symlink_to(outside)
    for _ in range(2):
        openmetrics.write(file, look())
        assert families(file.read_text())
    assert [path.name for path in file.parent.iterdir()] == ["clusterddp.prom"]
    assert stat.S_IMODE(file.lstat().st_mode) == 0o644
    assert outside.read_text() == "kept"
    with pytest.raises(OSError, match="No such file"):
        openmetrics.write(tmp_path / "missing" / "x.prom", look())


def test_calls_of_several_looks_are_put_on_one_clock() -> None:
    history = CallHistory()
    offset = 3_000_000_000
    for _ in range(2):
        history.add({"gpu00": ([pace(0).pace], (0, 10)), "gpu01": ([pace(1).pace], (offset, 20))})
    (group,) = history.groups()
    assert (group.name, sorted(group.members)) == ("0", [0, 1])
    assert sorted(group.times) == [41, 42, 43]
    assert group.times[42] == {0: (CALLED_US + 100_000) * 1000, 1: (CALLED_US + 100_100) * 1000 - offset}
    assert {rank: clock.host for rank, clock in history.clocks.items()} == {0: "gpu00", 1: "gpu01"}
    assert 10 <= history.clocks[0].error_ns < 10**6


def test_the_best_comparison_of_clocks_counts_until_it_is_old_or_wrong() -> None:
    history = CallHistory()
    far = 100_000_000
    for offset, error, used in ((100, 50, 100), (5_000_000, 9_000_000, 100), (far, 9_000_000, far)):
        history.add({"gpu00": ([pace(0).pace], (offset, error))})
        (group,) = history.groups()
        assert CALLED_US * 1000 - group.times[41][0] == used


def test_workers_or_groups_that_begin_anew_forget_what_was() -> None:
    history = CallHistory()
    old = pace(0).pace
    history.add({"gpu00": ([old], (0, 0))})
    (first,) = old.groups
    history.add({"gpu00": ([old._replace(groups=(first._replace(ident=3, first=1),))], (0, 0))})
    assert sorted(history.groups()[0].times) == [1, 2, 3]
    history.add({"gpu00": ([old._replace(pid=7, groups=())], (0, 0))})
    assert history.groups() == []
    history.add({"gpu00": ([old._replace(why="it is stopped (SIGSTOP)", groups=())], (0, 0))})
    assert history.silent == [0]
