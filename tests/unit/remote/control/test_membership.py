"""What the nodes of a run know of each other, over real connections on the loopback."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.control import heartbeats, leader, membership
from clusterddp.remote.control.connection import Secret
from clusterddp.remote.control.control_events import Event, Lost, MessageReceived
from clusterddp.remote.control.leader import Control
from clusterddp.remote.control.membership import Membership
from clusterddp.remote.control.messages import (
    AttemptDecision,
    EndOrder,
    Joined,
    Message,
    NodeState,
    NodeStatus,
    NodeStatusRow,
    StatusMessage,
    StatusTable,
    TakingPart,
)
from clusterddp.remote.shared.schema.json_text import read_json
from clusterddp.remote.system.bootstrap import write_json
from tests.unit.remote.control.test_leader import KEY, Star

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

RUNNING, ENDED = NodeStatus(NodeState.RUNNING, 1), NodeStatus(NodeState.ENDED, 1, 1, cause="x")
AGAIN = AttemptDecision(2, (0, 1), 0, 29500)
STOP = EndOrder("by hand", 3.0, ours=False)


class Run(Star):
    """A star whose nodes know of each other."""

    def __init__(self, count: int, folder: Path) -> None:
        super().__init__(count)
        self.folder = folder
        self.names = [f"gpu{index:02}" for index in range(count)]
        self.known: dict[int, Membership] = {}

    def member(self, index: int) -> Membership:
        made: list[Membership] = []
        secret = Secret(KEY, "run", index)

        def take(event: Event) -> None:
            made[0].handle_event(event)

        control = Control(secret, self.selector, take, self.listeners[index])
        control.begin(self.addresses)
        made.append(Membership(control, list(self.names), lambda *_: None, self.keeper(index)))
        made[0].begin(1, range(len(self.names)), limit=1e9)
        self.nodes[index], self.known[index], self.heard[index] = control, made[0], []
        return made[0]

    def keeper(self, index: int) -> Callable[[dict[str, Any]], None]:
        """What keeps a node's knowledge of the others in a file."""
        spool = self.folder / str(index)
        spool.mkdir(exist_ok=True)
        return lambda known: write_json(str(spool / "peers.json"), known, durable=False)

    def turn(self) -> None:
        super().turn()
        for index in self.nodes:
            self.known[index].turn(time.monotonic())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    for name, value in {"LEADER_TIMEOUT": 0.3, "RETRY_INTERVAL": 0.05, "ASK_INTERVAL": 0.1}.items():
        monkeypatch.setattr(leader, name, value)
    for name, value in {"HEARTBEAT_INTERVAL": 0.1, "UNANSWERED_INTERVAL": 0.05}.items():
        monkeypatch.setattr(heartbeats, name, value)
    monkeypatch.setattr(membership, "REPEAT_INTERVAL", 0.2)
    made = Run(3, tmp_path)
    yield made
    made.close()


def test_who_is_lost_or_has_failed_is_named_to_all_agents(run: Run) -> None:
    members = [run.member(index) for index in range(3)]
    for member in members:
        member.publish(RUNNING)
    run.until(lambda: all(len(member.statuses) == 3 for member in members))
    members[1].publish(ENDED)
    run.until(lambda: read_json(str(run.folder / "2" / "peers.json"))["excluded"] == ["gpu01"])
    members[0].limit = 0.1
    run.loses(2)
    run.until(lambda: read_json(str(run.folder / "0" / "peers.json"))["excluded"] == ["gpu01", "gpu02"])


def test_who_takes_part_is_said_by_the_leader_with_an_epoch_that_grows(run: Run) -> None:
    members = [run.member(index) for index in range(3)]
    for member in members:
        member.publish(RUNNING)
    run.until(lambda: all(member.participants and member.participants.members == (0, 1, 2) for member in members))
    epoch = members[2].epoch
    members[1].publish(ENDED)
    run.until(lambda: all(member.participants and member.participants.members == (0, 2) for member in members))
    assert {member.epoch for member in members} == {members[0].epoch}
    assert members[2].epoch > epoch
    members[2].publish(NodeStatus(NodeState.ENDED, 1, 0))
    run.until(
        lambda: all(
            member.participants and (member.participants.members, member.participants.ended) == ((0,), (2,))
            for member in members
        )
    )
    assert [member.excluded for member in members] == [(1,)] * 3


def test_who_leads_next_says_it_with_a_greater_epoch(run: Run) -> None:
    members = [run.member(index) for index in range(3)]
    for member in members:
        member.publish(RUNNING)
        member.limit = 0.1
    run.until(lambda: all(len(member.statuses) == 3 and member.participants for member in members))
    members[2].epoch += 5  # heard of a leader that the next one has never heard
    run.loses(0)
    last = members[2].epoch
    run.until(lambda: all(member.participants and member.participants.members == (1, 2) for member in members[1:]))
    run.until(lambda: members[1].epoch == members[2].epoch > last)


def test_only_the_leader_of_a_majority_with_which_contact_is_proved_may_decide(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [run.member(index) for index in range(3)]
    run.until(lambda: members[0].may_decide)
    assert not any(member.may_decide for member in members[1:])
    with monkeypatch.context() as later:  # connected still, but not heard for longer than contact is valid
        later.setattr(leader, "CONTACT_VALID", 0.0)
        assert not members[0].may_decide
    run.loses(1)
    run.loses(2)
    run.until(lambda: not members[0].control.majority)
    assert members[0].control.leading
    assert not members[0].may_decide


@pytest.mark.parametrize(
    "why", [{"by_majority": True}, {"fewest": 2}], ids=["others may begin anew", "too few are left"]
)
def test_a_leader_without_a_majority_excludes_nobody_who_may_go_on_without_it_or_whom_it_needs(
    run: Run, why: dict[str, int]
) -> None:
    members = [run.member(index) for index in range(3)]
    for member in members:
        member.limit = 0.1
        vars(member).update(why)
        member.publish(RUNNING)
    run.until(lambda: all(member.participants for member in members))
    run.loses(1)
    run.loses(2)
    run.until(lambda: members[0].control.leading and members[0].lost(time.monotonic(), 0.1) == [1, 2])
    for _ in range(10):
        run.turn()
    assert members[0].excluded == ()
    vars(members[0]).update(dict.fromkeys(why, 0))
    run.until(lambda: members[0].excluded == (1, 2))


def test_a_node_that_is_cut_off_from_the_store_excludes_nobody(run: Run) -> None:
    """It would come back and tell those who went on that they are gone."""
    members = [run.member(index) for index in range(3)]
    for member in members:
        member.begin(1, range(3), limit=0.1, store=1)
        member.publish(RUNNING)
    run.until(lambda: all(member.participants for member in members))
    run.loses(1)
    run.loses(2)
    run.until(lambda: members[0].control.leading and members[0].lost(time.monotonic(), 0.1) == [1, 2])
    for _ in range(10):
        run.turn()
    assert members[0].excluded == ()


def test_a_leader_that_leaves_is_known_to_have_left(run: Run) -> None:
    members = [run.member(index) for index in range(3)]
    for member in members:
        member.publish(RUNNING)
    run.until(lambda: all(len(member.statuses) == 3 for member in members))
    members[0].leave()
    run.nodes.pop(0)
    run.until(lambda: all(member.left == {0} for member in members[1:]))


def test_a_word_said_by_one_node_is_known_to_all(run: Run) -> None:
    members = [run.member(index) for index in range(3)]
    for member in members:
        member.publish(RUNNING)
    run.until(lambda: all(len(member.statuses) == 3 for member in members))
    members[2].publish(ENDED)
    run.until(lambda: all(member.statuses[2] == ENDED for member in members))
    run.until(lambda: set(read_json(str(run.folder / "1" / "peers.json"))["nodes"]) == set(run.names))


def test_who_connects_later_hears_all_that_holds(run: Run) -> None:
    lead, other = run.member(0), run.member(1)
    other.publish(ENDED)
    run.until(lambda: 1 in lead.statuses)
    lead.decide(AGAIN)
    lead.pass_on(STOP)
    late = run.member(2)
    heard: list[Event] = []
    late.control.handle = lambda event: late.handle_event(event) if heard.append(event) is None else None  # type: ignore[func-returns-value]
    run.until(lambda: late.decision == AGAIN and late.statuses.get(1) == ENDED and MessageReceived(0, STOP) in heard)


def test_a_decision_whose_message_was_lost_is_told_again(run: Run) -> None:
    lead, other = run.member(0), run.member(1)
    run.until(lambda: lead.control.connected == {1})
    lead.decision = AGAIN  # decided, and the message dropped
    run.until(lambda: other.decision == AGAIN)


def test_a_new_lead_hears_of_the_old_ones_decision_from_who_heard_it(run: Run) -> None:
    lead, first, second = (run.member(index) for index in range(3))
    run.until(lambda: lead.control.connected == {1, 2})
    second.decision = AGAIN  # the lead's last message, which reached this node alone
    run.loses(0)
    run.until(lambda: first.control.leading and first.decision == AGAIN)


def test_an_older_decision_replaces_no_newer_one(run: Run) -> None:
    lead, other = run.member(0), run.member(1)
    run.until(lambda: lead.control.connected == {1})
    other.decision = AGAIN
    lead.decide(AttemptDecision(1, (0,), 0, 1))
    lead.publish(RUNNING)
    run.until(lambda: 0 in other.statuses)
    assert other.decision == AGAIN


def test_an_order_that_ends_the_run_is_not_replaced_by_one_that_ends_an_attempt(run: Run) -> None:
    lead = run.member(0)
    lead.pass_on(STOP)
    lead.pass_on(STOP._replace(attempt=1))
    assert lead.order == STOP


def test_who_is_connected_and_speaks_of_an_older_attempt_is_behind(run: Run) -> None:
    lead, other = run.member(0), run.member(1)
    other.publish(RUNNING)
    run.until(lambda: 1 in lead.statuses)
    now = time.monotonic()
    assert lead.behind(now + 60, 30) == []
    lead.begin(2, lead.members, limit=1e9)
    assert (lead.behind(now, 30), lead.behind(now + 60, 30)) == ([], [1])
    other.publish(RUNNING._replace(attempt=2))
    run.until(lambda: lead.statuses[1].attempt == 2)
    assert lead.behind(now + 60, 30) == []


def test_a_last_word_is_unheard_until_a_lead_is_reached(run: Run) -> None:
    other = run.member(1)
    other.publish(ENDED)
    assert other.undelivered
    run.member(0)
    run.until(lambda: not other.undelivered)


def test_a_host_that_joined_has_the_next_place_and_no_other(run: Run) -> None:
    lead = run.member(0)
    newcomer = Joined("gpu03", "127.0.0.1", 1, 29500)
    lead.handle_event(MessageReceived(1, StatusMessage(RUNNING._replace(joined=newcomer), 0.0)))
    lead.handle_event(MessageReceived(9, StatusMessage(RUNNING._replace(joined=newcomer), 0.0)))
    lead.handle_event(MessageReceived(1, StatusTable((NodeStatusRow(9, 0.0, RUNNING),), 0.0)))
    assert (lead.names[3:], sorted(lead.statuses)) == ([], [])
    lead.handle_event(MessageReceived(3, StatusMessage(RUNNING._replace(joined=newcomer), 0.0)))
    assert (lead.names[3:], lead.control.addresses[3:]) == (["gpu03"], [("127.0.0.1", 29500)])


def test_of_two_hosts_that_join_as_the_same_member_the_second_is_told_that_it_has_no_part(run: Run) -> None:
    lead, late = run.member(0), run.member(2)  # who is late has the third name
    run.until(lambda: 2 in lead.control.connected)
    lead.names[2] = "gpu09"
    lead._receive(2, RUNNING._replace(joined=Joined("gpu09", "127.0.0.1", 1, 29500)))
    late.publish(RUNNING._replace(joined=Joined("gpu02", "127.0.0.1", 1, 29500)))
    run.until(lambda: late.replaced)
    assert [status.joined.host for status in lead.statuses.values() if status.joined] == ["gpu09"]
    assert not lead.replaced


def test_a_host_that_joins_counts_for_a_verdict_once_a_majority_of_those_that_count_is_in_contact(run: Run) -> None:
    lead = run.member(0)
    run.until(lambda: lead.control.leading)
    newcomer = Joined("gpu03", "127.0.0.1", 1, 29500)
    lead.handle_event(MessageReceived(3, StatusMessage(RUNNING._replace(joined=newcomer), 0.0)))
    for _ in range(10):
        run.turn()
    assert (len(lead.names), lead.voters) == (4, 3)
    assert not lead.has_majority_of({0, 3})
    other = run.member(1)
    run.until(lambda: (lead.voters, other.voters) == (4, 4))
    assert not lead.has_majority_of({0, 3})


def test_a_host_that_joins_takes_part_only_in_the_attempt_that_its_status_is_of(run: Run) -> None:
    lead = run.member(0)
    added: list[bool] = []
    lead.add_host = lambda _, takes_part: added.append(takes_part)
    for member, status in enumerate((RUNNING, RUNNING._replace(attempt=2), NodeStatus(NodeState.STANDBY, 1)), start=3):
        newcomer = Joined(f"gpu{member:02}", "127.0.0.1", 1, 29500)
        lead.handle_event(MessageReceived(member, StatusMessage(status._replace(joined=newcomer), 0.0)))
    assert added == [True, False, False]


def test_a_host_that_is_lost_before_it_has_a_name_is_not_missed(run: Run) -> None:
    lead = run.member(0)
    lead.handle_event(Lost(3, 100.0))
    lead.turn(time.monotonic())
    run.until(lambda: read_json(str(run.folder / "0" / "peers.json"))["missing"] == ["gpu01", "gpu02"])


def test_who_left_before_an_attempt_that_it_was_chosen_for_is_lost_to_it(run: Run) -> None:
    lead = run.member(0)
    lead.handle_event(MessageReceived(1, StatusMessage(ENDED._replace(left=True), 0.0)))
    assert lead.lost(time.monotonic(), 20.0) == []
    lead.begin(2, (0, 1), limit=20.0)
    assert lead.lost(time.monotonic(), 20.0) == [1]


def test_since_when_a_node_is_lost_counts_from_when_it_was_last_heard(run: Run) -> None:
    lead = run.member(0)
    lead.statuses[1] = RUNNING
    lead.handle_event(Lost(1, 100.0))
    assert (lead.lost(119.0, 20.0), lead.lost(121.0, 20.0)) == ([], [1])


def test_a_node_that_was_here_and_is_lost_before_its_first_status_is_not_waited_for_as_one_that_was_never_here(
    run: Run,
) -> None:
    lead = run.member(0)
    lead.handle_event(Lost(1, 100.0))
    lead.missing[2] = 100.0
    long = membership.START_TIMEOUT + 1
    assert (lead.lost(109.0, 7.5), lead.lost(111.0, 7.5), lead.lost(100.0 + long, 7.5)) == ([], [1], [1, 2])


def test_the_table_of_2000_nodes_with_long_causes_reaches_the_others(tmp_path: Path, run: Run) -> None:
    run.names = [f"gpu{index:04}" for index in range(2000)]
    lead, other = run.member(0), run.member(1)
    for index in range(2, 2000):
        lead.handle_event(MessageReceived(index, StatusMessage(ENDED._replace(cause="c" * 300), 0.0)))
    run.until(lambda: lead.control.connected == {1})
    run.until(lambda: len(other.statuses) >= 1998)
    assert other.statuses[1999].cause == "c" * 300
    assert (tmp_path / "1" / "peers.json").stat().st_size


def test_a_thousand_changes_are_a_few_tables_and_who_connects_at_once_gets_all_of_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "REPEAT_INTERVAL", 1e6)
    run.names = [f"gpu{index:04}" for index in range(1000)]
    lead, other = run.member(0), run.member(1)
    run.until(lambda: other.control.connected and not lead._without_table)
    sent: list[Message] = []
    send = lead.control.send

    def count(message: Message, to: Collection[int] | None = None) -> None:
        sent.append(message)
        send(message, to)

    monkeypatch.setattr(lead.control, "send", count)
    for index in range(2, 1000):
        lead.handle_event(MessageReceived(index, StatusMessage(ENDED, 0.0)))
    late = run.member(2)
    run.until(lambda: len(other.statuses) == 998 and len(late.statuses) == 997)  # its own it knows better
    assert len([message for message in sent if isinstance(message, StatusTable)]) < 20


def test_what_is_known_is_written_once_a_second_but_an_exclusion_at_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead, written = run.member(0), list[dict[str, Any]]()
    monkeypatch.setattr(lead, "save_peers", written.append)
    lead.statuses = {1: RUNNING}
    lead.reported_at = {1: 0.0}
    start = time.monotonic() + 1000
    for step in range(40):
        lead.handle_event(MessageReceived(1, StatusTable((NodeStatusRow(2, 0.0, RUNNING),), 0.0)))
        lead._save_if_due(start + step / 10)
    assert len(written) == 4
    lead.participants = TakingPart(1, 9, (0, 1))
    lead._unsaved = True
    lead._save_if_due(start + 4.0)
    assert written[-1]["excluded"] == ["gpu02"]
