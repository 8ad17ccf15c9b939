"""What a node tells a URL, from a spool as its supervisor leaves it, to a real web server."""

from __future__ import annotations

import base64
import http.client
import io
import json
import shutil
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.shared.run import webhook_request
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.supervisor.start_records import WebhookOrder
from clusterddp.remote.shared.verdict.judge import VerdictRecord
from clusterddp.remote.spool import supervisor_identity
from clusterddp.remote.spool.layout import Spool
from clusterddp.remote.supervisor import webhook_process
from clusterddp.remote.supervisor.webhook_process import WebhookNotifier, WebhookTask
from clusterddp.remote.system.clock import boot_time
from tests.unit.hooks_served import Served, served
from tests.unit.spool_writer import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


DAY = 86400 * 10**9  # ns


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(webhook_process, "RETRY_PAUSES", (0.0, 0.0))
    with served() as serving:
        yield serving


class Node:
    """A node's spool, and who tells of it."""

    def __init__(self, folder: Path, server: Served, silence: float = 0.0) -> None:
        self.server = server
        self.writer = Writer(folder)
        task = WebhookTask(WebhookOrder(server.url, silence), "tiny", "********.py")
        self.teller = WebhookNotifier(Spool(str(self.writer.folder)), task)

    def knows(self, leader: str = "h", **peers: list[str]) -> None:
        (self.writer.folder / "peers.json").write_text(json.dumps({"nodes": {}, "leader": leader, **peers}))

    def tells(self) -> list[tuple[str, str]]:
        """What is told now."""
        before = len(self.server.told)
        self.teller.check()
        return [(told["event"], told["text"]) for told in self.server.told[before:]]

    def judged(self, **fields: Any) -> None:
        base = VerdictRecord(0, "failed", 3, "rank 0 (h:0) failed first: exit code 3", "h", 0, ("h",))
        (self.writer.folder / "verdict.json").write_text(json.dumps(to_fields(base._replace(**fields))))


def test_the_lead_tells_of_a_host_that_is_lost_once(tmp_path: Path, server: Served) -> None:
    node = Node(tmp_path, server)
    node.knows(missing=["g"])
    assert node.tells() == []  # it may come back
    node.knows(missing=["g"], excluded=["g"])
    assert node.tells() == [("lost", "g is lost")]
    assert node.tells() == []


def test_who_leads_later_does_not_tell_again_what_the_lead_before_has_told(tmp_path: Path, server: Served) -> None:
    node = Node(tmp_path, server)
    node.knows(leader="g", missing=["f"], excluded=["f"])
    assert node.tells() == []
    node.knows(missing=["f", "g"], excluded=["f", "g"])
    assert node.tells() == [("lost", "g is lost")]


def test_the_lead_of_a_next_attempt_tells_whom_it_goes_on_without_once_it_knows_that_it_leads(
    tmp_path: Path, server: Served
) -> None:
    node = Node(tmp_path, server)
    node.knows()
    assert node.tells() == []
    plan = json.loads((node.writer.folder / "plan.json").read_text())
    plan["record"]["lost"] = ["g"]
    second = node.writer.folder.parents[1] / "1" / "0-h"
    second.mkdir(parents=True)
    (second / "plan.json").write_text(json.dumps(plan))
    assert node.tells() == []
    (second / "peers.json").write_text(json.dumps({"nodes": {}, "leader": "h"}))
    told = [(event, text.partition(" on ")[0]) for event, text in node.tells()]
    assert told == [("lost", "g is lost"), ("relaunched", "attempt 1")]
    assert node.tells() == []


@pytest.mark.parametrize(
    ("state", "event"), [("succeeded", "done"), ("failed", "failed"), ("stopped", "stopped"), ("lost", "failed")]
)
def test_who_judged_the_run_tells_how_it_ended(tmp_path: Path, server: Served, state: str, event: str) -> None:
    node = Node(tmp_path, server)
    node.judged(state=state, line="as it was")
    node.teller.run()  # and ends
    (told,) = server.told
    assert (told["event"], told["text"], told["verdict"]) == (event, "as it was", "as it was")


def test_how_a_run_ended_that_was_relaunched_before_is_told_though_its_supervisor_is_gone_by_then(
    tmp_path: Path, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of the first attempt's spool is free before that of the next one is looked at."""
    node, now, looks = Node(tmp_path, server), [1000.0], [False, True, False]
    node.knows()

    def sleep(_: float) -> None:
        now[0] += 100.0
        if not looks:  # the notice before took long
            node.judged()

    monkeypatch.setattr(node.teller.spool, "alive", lambda: looks.pop(0))
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep, time_ns=time.time_ns)
    monkeypatch.setattr(webhook_process, "time", clock)
    node.teller.run()
    assert [told["event"] for told in server.told] == ["failed"]


def test_each_notice_says_which_run_it_is_of(tmp_path: Path, server: Served) -> None:
    node = Node(tmp_path, server)
    path = node.writer.folder / "plan.json"
    plan = json.loads(path.read_text())
    plan["record"].update(hosts=["h", "g"], name="of a secret", script="secret.py", started=7 * 10**9)
    path.write_text(json.dumps(plan))
    node.knows(missing=["g"], excluded=["g"])
    node.teller.check()
    node.judged(ended=19_540_000_000)
    node.teller.check()
    lost, end = server.told
    about = {"run": "run1", "name": "tiny", "script": "********.py", "hosts": ["h", "g"]}  # struck when it began
    assert lost == {**about, "event": "lost", "text": "g is lost", "verdict": None, "duration": lost["duration"]}
    assert lost["duration"] > 10**6
    words = "rank 0 (h:0) failed first: exit code 3"
    assert end == {**about, "event": "failed", "text": words, "verdict": words, "duration": 12.5}


def test_a_duration_is_right_though_the_hosts_clock_was_set_meanwhile(
    tmp_path: Path, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, server)
    path = node.writer.folder / "plan.json"
    plan = json.loads(path.read_text())
    plan["record"].update(started=time.time_ns())
    path.write_text(json.dumps(plan))
    booted = boot_time()
    monkeypatch.setattr(supervisor_identity, "boot_time", lambda: booted - DAY)
    node.teller.spool.write_supervisor()
    monkeypatch.setattr(supervisor_identity, "boot_time", lambda: booted)
    node.teller.notify("lost", "g is lost")  # by the clock as it was, a day earlier than it is now
    monkeypatch.setattr(supervisor_identity, "boot_time", lambda: booted - 2 * DAY)
    node.teller.notify("lost", "f is lost")
    assert [told["duration"] // 86400 for told in server.told] == [0, 1]


def test_a_damaged_plan_leaves_what_happened_to_be_told(tmp_path: Path, server: Served) -> None:
    node = Node(tmp_path, server)
    node.judged()
    (node.writer.folder / "plan.json").write_text("{")
    node.teller.run()
    (told,) = server.told
    assert (told["event"], told["name"], told["hosts"], told["duration"]) == ("failed", "tiny", [], None)


def test_who_heard_of_the_end_from_another_says_nothing(tmp_path: Path, server: Served) -> None:
    node = Node(tmp_path, server)
    node.judged(writer="g")
    node.teller.run()
    assert server.told == []


def test_silence_is_told_once_until_somebody_prints_again(tmp_path: Path, server: Served) -> None:
    node = Node(tmp_path, server, silence=300.0)
    node.knows()
    assert node.tells() == []  # nobody has printed yet: they may be loading
    node.writer.clock = time.time_ns() - 400 * 10**9
    node.writer.say("0.0.out", b"step 1\n")
    ((event, text),) = node.tells()
    assert (event, text[:28]) == ("silent", "no rank on h has printed for")
    assert node.tells() == []
    node.writer.say("0.0.out", b"step 2\n", seconds=390.0)
    assert node.tells() == []


def test_a_stall_is_told_once_and_by_the_lead_alone(tmp_path: Path, server: Served) -> None:
    node, line = Node(tmp_path, server), "stalled: rank 1 (h:1) did not join all_reduce #4"
    node.knows(leader="g")
    node.teller.spool.event("stalled", reason=line, start=0, local_rank=0, pid=None)
    assert node.tells() == []
    node.knows()
    node.teller.spool.event("stalled", reason=line, start=0, local_rank=1, pid=7)
    assert node.tells() == []
    node.teller.spool.event("stalled", reason=f"{line}; no restart is left", start=0, local_rank=0, pid=None)
    assert node.tells() == [("stalled", f"{line}; no restart is left")]


def test_a_stall_in_the_same_words_of_workers_started_again_is_told_too(tmp_path: Path, server: Served) -> None:
    node, line = Node(tmp_path, server), "stalled: rank 1 (h:1) did not join all_reduce #4"
    node.knows()
    for start in (0, 1):
        node.teller.spool.event("stalled", reason=line, start=start, local_rank=0, pid=None)
        assert node.tells() == [("stalled", line)]


def test_the_same_stall_in_the_next_attempt_is_told_again(tmp_path: Path, server: Served) -> None:
    node, line = Node(tmp_path, server), "stalled: rank 1 (h:1) did not join all_reduce #4"
    node.knows()
    node.teller.spool.event("stalled", reason=line, start=0, local_rank=0, pid=None)
    assert node.tells() == [("stalled", line)]
    second = node.writer.folder.parents[1] / "1" / "0-h"
    second.mkdir(parents=True)
    for name in ("plan.json", "peers.json", "events.jsonl"):
        shutil.copy(node.writer.folder / name, second)
    assert [event for event, _ in node.tells()] == ["relaunched", "stalled"]
    assert node.tells() == []


def test_a_server_that_is_busy_is_asked_again(tmp_path: Path, server: Served) -> None:
    server.codes = [503]
    node = Node(tmp_path, server)
    node.teller.notify("done", "succeeded")
    assert [told["event"] for told in server.told] == ["done"]


def test_what_cannot_be_sent_is_on_record_without_the_url(tmp_path: Path, server: Served) -> None:
    server.codes = [404, 500, 500]
    node = Node(tmp_path, server)
    node.teller.notify("lost", "one")  # 404: the same again would not help
    node.teller.notify("done", "two")
    events = (node.writer.folder / "events.jsonl").read_text()
    assert [json.loads(line)["reason"] for line in events.splitlines()] == ["HTTP 404", "HTTP 500"]
    assert "secret" not in events


def test_user_and_password_of_a_url_are_shown_to_its_server_and_to_none_that_it_names(server: Served) -> None:
    with served() as other:
        server.codes, server.location = [204, 302], other.url
        url = server.url.replace("://", "://al%40ice:p%3Aw%2Fd@")
        assert webhook_request.post(url, {"event": "done"}, 10) == ("", False)
        assert webhook_request.post(url, {"event": "done"}, 10) == ("", False)
    assert server.authorized == ["Basic " + base64.b64encode(b"al@ice:p:w/d").decode()] * 2
    assert other.authorized == [None]
    assert webhook_process._why_unreachable(url) == ""


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_a_webhook_that_has_moved_is_told_at_its_new_place(server: Served, code: int) -> None:
    with served() as other:
        server.codes, server.location = [code], other.url
        assert webhook_request.post(server.url, {"event": "done"}, 10) == ("", False)
    assert other.told == [{"event": "done"}]


@pytest.mark.parametrize(("code", "host"), [(303, "127.0.0.1"), (302, "localhost")])
def test_a_notice_that_was_taken_is_told_nowhere_else(server: Served, code: int, host: str) -> None:
    with served() as other:
        server.codes, server.location = [code], other.url.replace("127.0.0.1", host)
        assert webhook_request.post(server.url, {"event": "done"}, 10) == ("", False)
    assert (other.told, other.authorized) == ([], [None])


@pytest.mark.parametrize("place", ["ftp://127.0.0.1:9/x", "file:///etc/hostname"])
def test_a_redirect_to_no_web_server_is_a_failure(server: Served, place: str) -> None:
    server.codes, server.location = [302], place
    assert webhook_request.post(server.url, {"event": "done"}, 10) == ("HTTP 302", False)


def test_no_redirect_leads_from_https_to_http() -> None:
    request, moved = webhook_request.request_of("https://127.0.0.1:9/x", {}), "http://127.0.0.1:9/x"
    headers = http.client.HTTPMessage()
    assert webhook_request._Redirects().redirect_request(request, io.BytesIO(), 301, "", headers, moved) is None


@pytest.mark.parametrize("url", ["http://alice:pw@127.0.0.1:9/x", "http://alice:p/w@127.0.0.1/x", "http://a:b@[::bad/"])
def test_why_a_url_with_a_password_cannot_be_told_names_neither(url: str) -> None:
    why, _ = webhook_request.post(url, {"event": "done"}, 10)
    assert why
    assert not any(part in why + webhook_process._why_unreachable(url) for part in ("alice", "pw", "p/w", "127"))


@pytest.mark.parametrize("damage", ["{", '{"nodes": 3}', '{"nodes": {}, "missing": "g"}'])
def test_a_damaged_file_ends_nothing(tmp_path: Path, server: Served, damage: str) -> None:
    node = Node(tmp_path, server)
    (node.writer.folder / "peers.json").write_text(damage)
    node.judged()
    node.teller.run()
    assert [told["event"] for told in server.told] == ["failed"]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:9/secret", "Connection refused"),
        ("http://[::bad/secret", "no URL"),
        ("https://name.invalid/secret", "Name or service not known"),
    ],
)
def test_without_a_way_out_the_reason_is_told_and_no_url(url: str, why: str) -> None:
    assert "secret" not in webhook_process._why_unreachable(url)
    assert why in webhook_process._why_unreachable(url) or "Temporary failure" in webhook_process._why_unreachable(url)


def test_the_way_out_leads_over_the_proxy_that_workers_have(monkeypatch: pytest.MonkeyPatch, server: Served) -> None:
    assert webhook_process._why_unreachable(server.url) == ""
    monkeypatch.setenv("http_proxy", "127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert webhook_process._why_unreachable(server.url) == "Connection refused"
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    assert webhook_process._why_unreachable("http://name.invalid/x") == ""
