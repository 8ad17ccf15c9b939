"""What beats prove, and what they do not."""

from __future__ import annotations

from clusterddp.remote.control.contact import NEVER, Contact, Echoes, age


def test_a_beat_that_comes_back_proves_contact_when_it_was_sent() -> None:
    echoes = Echoes()
    for now in (10.0, 11.0, 12.0):
        echoes.record_sent(now)
    assert echoes.record_received(1, 2)
    assert echoes.proved == 11.0


def test_what_comes_late_or_again_proves_nothing() -> None:
    echoes = Echoes()
    echoes.record_sent(10.0)
    assert echoes.record_received(5, 0)
    assert not echoes.record_received(4, 1)
    assert not echoes.record_received(5, 1)
    assert echoes.proved == NEVER


def test_a_beat_that_was_never_sent_proves_none() -> None:
    echoes = Echoes()
    echoes.record_sent(10.0)
    assert echoes.record_received(1, 1 << 40)
    assert echoes.proved == 10.0


def test_a_lead_was_in_contact_when_the_last_of_a_majority_was() -> None:
    contact = Contact()
    contact.count_majority([5.0], 4, now=9.0)
    assert contact.proved == NEVER
    contact.count_majority([5.0, 7.0], 4, now=9.0)
    assert contact.proved == 5.0
    contact.count_majority([5.0, 7.0, 8.0], 4, now=9.0)
    assert contact.proved == 7.0
    contact.count_majority([], 0, now=10.0)  # the others are not known yet
    assert contact.proved == 7.0


def test_a_follower_was_in_contact_no_later_than_its_lead() -> None:
    contact = Contact()
    contact.follow(20.0, 1.5)
    contact.follow(19.0, 0.0)
    assert contact.proved == 19.0
    contact.follow(15.0, 0.0)
    assert contact.proved == 19.0


def test_no_other_lead_had_contact_later_than_any_of_ours_heard_it() -> None:
    contact = Contact()
    contact.leave(30.0)
    contact.note_elsewhere(50.0, 10.0)
    contact.note_elsewhere(51.0, 40.0)
    assert (contact.elsewhere, contact.left) == (40.0, 30.0)
    assert age(50.0, NEVER) > 1e5


def test_what_a_lead_sends_without_a_majority_proves_none_when_it_comes_back() -> None:
    echoes = Echoes()
    echoes.record_sent(10.0)
    echoes.record_sent(11.0, proves=False)
    assert echoes.record_received(1, 2)  # the first may not have arrived
    assert echoes.proved == NEVER
    echoes.record_sent(12.0)
    assert echoes.record_received(2, 3)
    assert echoes.proved == 12.0
