"""The doctor's page: everything that was found is on it, nothing is loaded, nothing from a host is markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from clusterddp.checks.engine import judge, select
from clusterddp.checks.model import Diagnosis
from clusterddp.doctor.report_html import MAX_DRAWN_HOSTS, SIGNS, doctor_page
from clusterddp.errors import UnreachableError
from clusterddp.facts.bench import Bench
from clusterddp.facts.dials import Pair
from clusterddp.facts.speeds import Speed
from tests.unit.evidence_made import ComparedName, cluster, comparisons, seen, unreached

MADE = "clusterddp 0, today"
EVIL = "<script>alert(1)</script>"
VOID = {"meta", "link", "br", "img"}


class Reader(HTMLParser):
    """What a browser would make of it: elements in order, cells by class, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def cells(self, word: str) -> list[str]:
        return [
            str(own.get("title")) for tag, own in self.tags if tag == "td" and word in str(own.get("class")).split()
        ]


def pairs(count: int, **fields: Any) -> tuple[Pair, ...]:
    names = [f"gpu{number:02}" for number in range(1, count + 1)]
    made = {"verdict": "pass", "word": "ok", "rtt_ms": 0.1, "bulk": True, "sent": 60, **fields}
    return tuple(Pair(source=one, target=other, **made) for one in names for other in names if one != other)


def read(count: int = 3, ways: tuple[Pair, ...] = (), *changed: Any) -> Reader:
    evidence = cluster(*changed, count=count)
    assert evidence.network
    evidence = replace(evidence, network=replace(evidence.network, pairs=ways))
    return Reader(doctor_page(Diagnosis(evidence=evidence, results=tuple(judge(evidence, select()))), MADE))


def test_a_healthy_cluster_has_no_finding() -> None:
    found = read(3, pairs(3))
    assert "Nothing is wrong." in found.text
    assert "3 hosts: gpu[01:03]" in found.text
    assert MADE in found.text
    assert len(found.cells("pass")) == 6
    assert not [tag for tag, _ in found.tags if tag == "article"]


def test_a_finding_says_what_a_user_would_see_and_what_helps() -> None:
    full = seen("gpu02", "gpu01", "gpu02", "gpu03", shm_bytes_free=1 << 26)
    found = read(3, (), full)
    assert ("article", {"class": "fail"}) in found.tags
    article = found.text[found.text.index("Findings") : found.text.index("Hosts")]
    assert re.search(r"shm Machines gpu02\s*only 64 MiB are free in /dev/shmyou would see.*Bus error.*fix", article)


def test_a_way_that_is_shut_is_named_in_its_cell() -> None:
    shut = replace(pairs(3)[0], verdict="fail", word="timeout", ports="all", rtt_ms=None)
    found = read(3, (shut, *pairs(3)[1:]))
    assert found.cells("fail") == ["gpu01 → gpu02: timeout on all ports"]
    assert len(found.cells("pass")) == 5


def test_slower_ways_have_another_shade() -> None:
    quick, *rest = pairs(3)
    found = read(3, (replace(quick, rtt_ms=0.35), *rest))
    assert found.cells("step1") == ["gpu01 → gpu02: ok, 0.35 ms"]
    assert len(found.cells("step0")) == 5


def test_bandwidth_that_was_measured_has_a_map_of_its_own() -> None:
    fast = [Speed(source=one.source, target=one.target, size=1 << 30, ns=1 << 30) for one in pairs(3)]
    slow, dead = replace(fast[0], ns=5 << 30), replace(fast[1], size=0, ns=0, error="refused")
    evidence = replace(cluster(), network=None, bench=Bench(speeds=(slow, dead, *fast[2:])))
    found = Reader(doctor_page(Diagnosis(evidence=evidence, results=()), MADE))
    assert "Bandwidth" in found.text
    assert found.cells("step2") == ["gpu01 → gpu02: 1600 Mbit/s"]
    assert found.cells("fail") == ["gpu01 → gpu03: refused"]
    assert len(found.cells("step0")) == 4
    assert "down to 4.0" in found.text


def test_of_a_large_cluster_only_ways_that_are_not_well_are_drawn() -> None:
    count = MAX_DRAWN_HOSTS + 1
    first, *rest = pairs(count)
    found = read(count, (replace(first, verdict="warn", resent=5, sent=10), *rest))
    assert found.cells("warn") == ["gpu01 → gpu02: ok, 0.10 ms, 50.0% sent again"]
    assert len(found.cells("self")) == 2
    assert f"{count - 2} of {count} hosts are not drawn." in found.text
    assert f"{count} of {count} hosts are not drawn." in read(count, pairs(count)).text


def test_a_host_that_was_not_reached_stands_in_the_table_with_the_reason() -> None:
    gone = replace(seen("gpu02"), error=UnreachableError("gpu02", "no route"), facts=None)
    found = read(3, (), gone)
    assert "no route" in found.text[found.text.index("Hosts") :]


def test_each_host_stands_in_the_table_with_its_worst_verdict() -> None:
    warned = seen("gpu02", "gpu01", "gpu02", "gpu03", health={"limits": {"nofile": (256, 4096)}})
    gone = replace(seen("gpu03"), error=UnreachableError("gpu03", "no route"), facts=None)
    text = read(3, (), warned, gone).text
    table = text[text.index("Hosts") :]
    rows = re.findall(r"([^\w\s]) +(gpu0\d)", table[: table.index("no route")])
    assert rows == [(SIGNS["pass"], "gpu01"), (SIGNS["warn"], "gpu02"), (SIGNS["fail"], "gpu03")]


def test_the_hosts_table_costs_no_search_of_every_check_for_every_host() -> None:
    def act(names: list[ComparedName]) -> None:
        doctor_page(diagnosis[len(names)], MADE)

    diagnosis: dict[int, Diagnosis] = {}
    for count in (20, 40):
        evidence = unreached(*(ComparedName(f"gpu{number:02}") for number in range(count)))
        diagnosis[count] = Diagnosis(evidence=evidence, results=tuple(judge(evidence, select())))
    assert comparisons(act, 40) <= 2 * comparisons(act, 20)


@pytest.mark.parametrize("field", ["kernel", "python_version", "ssh_address"])
def test_what_a_host_says_is_text(field: str) -> None:
    found = read(3, (), seen("gpu02", **dict[str, Any]({field: EVIL})))
    assert EVIL in found.text
    assert "script" not in {tag for tag, _ in found.tags}


@pytest.mark.parametrize("field", ["message", "fix", "symptom", "hosts"])
@pytest.mark.parametrize("verdict", ["fail", "pass"])
def test_a_result_that_quotes_a_host_is_text(field: str, verdict: Any) -> None:
    evidence = cluster(count=2)
    one = next(iter(judge(evidence, select())))
    evil: Any = (EVIL,) if field == "hosts" else EVIL
    told = replace(one, verdict=verdict, **{field: evil})
    found = Reader(doctor_page(Diagnosis(evidence=evidence, results=(told,)), MADE))
    assert "script" not in {tag for tag, _ in found.tags}
    assert EVIL in found.text or (verdict == "pass" and field in ("fix", "symptom"))


def test_nothing_is_loaded() -> None:
    found = read(3, pairs(3))
    policy = {own.get("content") for tag, own in found.tags if tag == "meta"}
    assert "default-src 'none'; style-src 'unsafe-inline'" in policy
    assert not [own for _, own in found.tags if {"src", "href", "onclick"} & set(own)]
