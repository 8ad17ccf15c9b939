"""What the checks print as symptoms is what jobs really say: words of theirs are in texts that faults have provoked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusterddp.checks.catalog import TABLE
from clusterddp.facts.host import TorchFacts
from tests.unit.evidence_made import cluster, seen, wrong

DATA = Path(__file__).parents[2] / "data"
# (check, words of its symptom, where they were really said)
SAID = [
    ("setup", "cannot open shared object file", "known/library-missing"),
    ("torch", "ModuleNotFoundError: No module named", "known/module-missing"),
    ("torch-equal", "undefined symbol", "known/undefined-symbol"),
    ("packages", "ModuleNotFoundError", "known/module-missing"),
    ("paths", "No such file or directory", "known/file-missing"),
    ("shm", "unable to allocate shared memory", "known/shared-memory"),
    ("limits", "Too many open files", "known/open-files"),
    ("limits", "can't start new thread", "known/threads"),
    ("own-name", "connectFullMesh failed", "symptoms/own-name"),
    ("own-name", "Connection refused, remote=[127.0.1.1]", "symptoms/own-name"),
    ("names", "Name or service not known", "known/name-unknown"),
    ("interface", "Unable to find address for: eno1", "symptoms/interface"),
    ("network", "No route to host", "symptoms/network-reject"),
    ("network", "The client socket has timed out", "symptoms/network-drop"),
    ("ports", "RendezvousTimeoutError", "known/rendezvous-timeout"),
    ("ports", "RendezvousConnectionError", "symptoms/ports-drop"),
    ("ports", "The client socket has timed out", "symptoms/ports-drop"),
    ("ports-free", "Address already in use", "known/port-in-use-python"),
    ("disk", "No space left on device", "known/disk-full"),
    ("writable", "Permission denied", "known/permission-denied"),
]  # fmt: skip


def said(name: str) -> str:
    """What was really printed, without the head that tells how it was provoked."""
    text = (DATA / f"{name}.txt").read_text(encoding="utf-8")
    head, _, rest = text.partition("\n")
    assert re.match(r"# provoked (by `python -m tests\.integration\.provoked|on two lab hosts)", head), head
    return rest


@pytest.mark.parametrize(("check", "words", "where"), SAID, ids=[f"{row[0]} {row[1]}" for row in SAID])
def test_words_of_a_symptom_are_what_a_job_really_says(check: str, words: str, where: str) -> None:
    (symptom,) = [one.symptom for one in TABLE if one.name == check]
    assert words in symptom
    assert words in said(where)


def test_a_torch_without_nccl_says_so() -> None:
    bare = TorchFacts(version="2.7.0", cuda="12.8", gloo=True, nccl_available=False, device_count=1)
    found = [one for one in wrong(cluster(seen("gpu02", devices=1, torch=bare))) if one.name == "backends"]
    assert found
    assert found[0].symptom in said("known/torch-without-cuda-nccl")


def test_a_clock_that_is_wrong_leaves_one_host_alone_with_an_agent_that_never_ends() -> None:
    (symptom,) = [one.symptom for one in TABLE if one.name == "clock"]
    assert "agents that never end, jobs that shrink to one host" in symptom
    text = said("symptoms/clock")
    assert "gpu00: reduced 1.0\n" in text  # each of two hosts adds one
    assert re.search(r"gpu00: \(it had not ended after \d+ s\)", text)


def test_every_text_that_was_provoked_on_hosts_is_looked_at() -> None:
    used = {where for _, _, where in SAID} | {"symptoms/clock"}
    assert {f"symptoms/{path.stem}" for path in (DATA / "symptoms").glob("*.txt")} <= used
