"""A bundle as it is put together and read back: its index, its secrets, what is no bundle, what a file says later."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.doctor.bundle import contents as bundle_contents
from clusterddp.doctor.bundle.contents import Contents, Heading
from clusterddp.doctor.bundle.host_parts import HostArchive, Part, add_archives, ask_archive, folder_names
from clusterddp.doctor.bundle.read_bundle import is_bundle, names_file, read_bundle, read_why
from clusterddp.doctor.bundle.write_bundle import new_file, why_text
from clusterddp.errors import HelperError, UsageError
from clusterddp.hosts.fanout import Outcome
from clusterddp.remote.shared.bundle.archive import NAME, Member, pack, unpack
from clusterddp.remote.shared.bundle.bundle_records import INDEX, BundleIndex, BundlePart
from clusterddp.runs.why import Why
from tests.unit.cli_help import said

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "hunter2-token"
HEADING = Heading(
    run="night",
    script=f"train.py {SECRET}",
    sentence="rank 1\n\x1b[2J waits",
    when="now",
    version="0",
    secrets=("FOO",),
)
WHY = Why(
    run="night",
    state="hung",
    kind="missing",
    ranks=(1,),
    hosts=("gpu00",),
    where="train.py:7 in validate",
    group="default",
    sequence=4,
    operation="all_reduce (float32 [4])",
    sentence="rank 1 (gpu00:1) did not join",
    evidence=("rank 0: waits",),
    remedy="look there",
    asked_ms=5,
)


def contents() -> Contents:
    made = Contents()
    made.add("why.json", "the same", WHY.to_json())
    made.add("hosts/b/outputs/start-0/rank1-0.err", "stderr of rank 1", f"x {SECRET}\nNo space left on device\n", "cut")
    made.add("status.json", "the run", "{}")
    made.add("hosts/a/events.jsonl", "what happened", "")
    made.lack("nvidia-smi", "no nvidia-smi on this host", "gpu00")
    made.lack("nvidia-smi", "no nvidia-smi on this host", "gpu01")
    made.lack("verdict.txt", "the run is running")
    return made


def written(path: Path) -> Path:
    path.write_bytes(pack(contents().packable("clusterddp-night", HEADING, [SECRET]), 7))
    return path


def test_the_index_says_what_is_here_and_what_is_not() -> None:
    members = contents().packable("clusterddp-night", HEADING, [SECRET])
    assert [member.name.removeprefix("clusterddp-night/") for member in members] == [
        "README.txt", "why.json", "status.json", "hosts/a/events.jsonl", "hosts/b/outputs/start-0/rank1-0.err",
    ]  # fmt: skip
    index = members[0].body.decode()
    assert index.splitlines()[0] == "Bundle of run night: train.py ********"
    assert "  rank 1\\n\\x1b[2J waits" in index
    assert "secrets (FOO)" in index
    assert index.endswith(
        "WHAT IS HERE\n"
        "  why.json                             the same\n"
        "  status.json                          the run\n"
        "  hosts/a/events.jsonl                 what happened\n"
        "  hosts/b/outputs/start-0/rank1-0.err  stderr of rank 1; cut\n"
        "\n"
        "WHAT IS NOT HERE, AND WHY\n"
        "  gpu00, gpu01: nvidia-smi: no nvidia-smi on this host\n"
        "  verdict.txt: the run is running\n"
    )
    assert SECRET.encode() not in b"".join(member.body for member in members)


def test_a_member_that_would_spoil_the_archive_is_left_out_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    made = contents()
    made.add("status.json", "another", "{}")
    made.add("hosts/a/../../x", "leads out", "")
    made.add("hosts/" + "a/" * 20, "is too deep", "")
    monkeypatch.setattr(bundle_contents, "MAX_TOTAL", 1000)
    made.add("hosts/z/large", "does not fit", "x" * 999)
    members = made.packable("clusterddp-night", HEADING, [])
    assert unpack(pack(members, 7)) == members
    assert len(members) == 5
    lacks = members[0].body.decode().partition("NOT HERE")[2]
    assert all(name in lacks for name in ("status.json", "hosts/a/../../x", "hosts/a/a/a", "hosts/z/large"))


def test_what_a_host_says_of_its_part_makes_no_bundle_unreadable() -> None:
    long = "\x7f" * 1_000_000
    made = contents()
    index = BundleIndex((BundlePart("a", long, long),), tuple((long, f"why {number}") for number in range(1000)))
    value = HostArchive(members=(Member("a", b""),), index=index, hidden=())
    add_archives(made, [Outcome(name="bad", value=value)], {"bad": "bad"})
    members = made.packable("clusterddp-night", HEADING, [])
    assert unpack(pack(members, 7)) == members
    assert len(members[0].body) < bundle_contents.MAX_INDEX
    assert b"no nvidia-smi on this host" in members[0].body


def test_an_index_that_is_too_long_is_cut() -> None:
    made = contents()
    for number in range(20_000):
        made.lack("x" * bundle_contents.MAX_NAME, f"reason {number}")
    members = made.packable("clusterddp-night", HEADING, [])
    assert unpack(pack(members, 7)) == members
    assert members[0].body.endswith(b"The rest of this list is left out: it is too long.\n")


def test_a_secret_in_a_json_value_does_not_break_it() -> None:
    made = Contents()
    made.add("why.json", "why", {**WHY.to_json(), "sentence": "a\newsecret\\quoted", "where": "b\newsecret"})
    (_, why) = made.packable("t", HEADING, ["newsecret", "ewsecret"])
    assert read_why(json.loads(why.body)).sentence == "a\n********\\quoted"


def answer(archive: str, hidden: object = ()) -> Any:
    return {"archive": archive, "hidden": hidden}


def test_a_host_that_answers_otherwise_is_an_error_of_that_host() -> None:
    part = Part(name="gpu00", spools=("/s",))
    index = Member(INDEX, json.dumps({"parts": [], "missing": []}).encode())
    whole = base64.b64encode(pack([index], 0)).decode()
    good = host_archive(StubHost(answer(whole, ["x"])), part)
    assert (good.members, good.hidden) == ((), ("x",))
    without = base64.b64encode(pack([Member("a", b"")], 0)).decode()
    wrong = base64.b64encode(pack([Member(INDEX, b'{"parts": 5}')], 0)).decode()
    archives = ("é", "AAAA", whole[:40], without, wrong)
    damaged_answers: list[Any] = [None, [], answer(whole, 5), *map(answer, archives)]
    for damaged in damaged_answers:
        with pytest.raises(HelperError, match="its answer is damaged"):
            host_archive(StubHost(damaged), part)


@pytest.mark.parametrize(
    "hidden",
    [["x" * 9000], [f"value {number}" for number in range(65)], ["\n".join(f"é {line:04}" for line in range(1000))]],
)
def test_a_host_that_hides_too_much_is_an_error_of_that_host(hidden: list[str]) -> None:
    index = Member(INDEX, json.dumps({"parts": [], "missing": []}).encode())
    whole = base64.b64encode(pack([index], 0)).decode()
    with pytest.raises(HelperError, match=r"^gpu00: it names \d+ secret values of \d+ letters, too many"):
        host_archive(StubHost(answer(whole, hidden)), Part(name="gpu00", spools=("/s",)))


class StubHost:
    """A host whose answer is the test's."""

    name = "gpu00"

    def __init__(self, said: Any) -> None:
        self._said = said

    def call(self, *_: Any, **__: Any) -> Any:
        return self._said


def host_archive(host: StubHost, part: Part) -> HostArchive:
    return ask_archive(host, part, 1, 0.0)  # type: ignore[arg-type]


def test_folders_of_hosts_have_plain_names_and_no_two_the_same() -> None:
    hosts = ["gpu00", "10.0.0.1", "fe80::1", "ä", "../x", "..", "x" * 300, "x" * 301]
    names = folder_names(hosts)
    assert names["gpu00"] == "gpu00"
    assert len({*names.values()}) == len(hosts)
    assert all(NAME.fullmatch(f"top/hosts/{name}/plan.json") for name in names.values())


def test_a_file_says_later_what_was_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "b.tar.gz")
    assert is_bundle(path)
    bundle = read_bundle(path)
    assert bundle.why() == WHY
    assert said(capsys, "why", str(path)) == (0, [WHY.sentence, "  rank 0: waits", "remedy: look there"])
    assert why_text(WHY) == f"{WHY.sentence}\n  rank 0: waits\nremedy: look there\n"
    ((name, message),) = bundle.explain()
    assert (name, message.known.name, message.line) == ("hosts/b/outputs/start-0/rank1-0.err", "disk-full", 2)


@pytest.mark.parametrize(
    ("word", "is_file"), [("night", False), ("./b", True), ("b.tar.gz", True), ("b.tgz", True), ("b.tar", False)]
)
def test_a_word_means_a_file_or_a_run(word: str, *, is_file: bool) -> None:
    assert names_file(word) is is_file


def test_what_is_no_bundle_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.log"
    log.write_text("Traceback\n")
    assert not is_bundle(log)
    assert not is_bundle(tmp_path)
    for path, message in (
        (log, f"{log} is no bundle that can be read: it is no gzip archive; `clusterddp bundle RUN` writes one"),
        (tmp_path / "no", f"there is no file {tmp_path}/no; `clusterddp bundle RUN` writes one"),
        (tmp_path, f"{tmp_path} is no bundle that can be read: Is a directory; `clusterddp bundle RUN` writes one"),
    ):
        assert said(capsys, "why", str(path)) == (2, [message])
    other = tmp_path / "other.tar.gz"
    other.write_bytes(pack([Member("x/y", b"")], 0))
    with pytest.raises(UsageError, match=r"its why\.json"):
        read_bundle(other).why()


WRONG: list[dict[str, Any]] = [
    {"ranks": "1"}, {"sentence": None}, {"evidence": [1]}, {"asked_ms": -1}, {"class": 5}, {"hosts": {}}, {"run": 7},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_why_that_was_changed_is_an_error_of_its_own(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        read_why({**WHY.to_json(), **wrong})
    assert read_why(json.loads(json.dumps(WHY.to_json()))) == WHY


def test_a_file_is_made_private_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    with new_file(path) as out:
        out.write(b"one")
    assert path.stat().st_mode & 0o777 == 0o600
    link = tmp_path / "link.tar.gz"
    link.symlink_to(tmp_path / "nothing")
    for taken in (path, tmp_path, link):
        with pytest.raises(UsageError, match="is there already"), new_file(taken):
            pass
    assert path.read_bytes() == b"one"
    assert not (tmp_path / "nothing").exists()


def test_a_file_that_could_not_be_filled_is_gone(tmp_path: Path) -> None:
    for error, kind in ((OSError(28, "No space left on device"), UsageError), (KeyboardInterrupt(), KeyboardInterrupt)):
        with pytest.raises(kind), new_file(tmp_path / "b.tar.gz"):
            raise error
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="No such file or directory"), new_file(tmp_path / "none" / "b.tar.gz"):
        pass
