"""A question to many hosts: who answers, who only lives, who is silent, and who has been silent before."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import HelperError
from clusterddp.hosts.inquiry import Inquiry

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 0.1


@dataclass
class Known:
    """An open host, as far as it is asked here; it was heard so many seconds ago."""

    silence: float
    lost: bool = False
    woken: int = 0

    def send_ping(self) -> None:
        self.woken += 1


@dataclass
class QueryContext:
    """One who is asked: answers at once, or when it is let."""

    name: str
    may_answer: threading.Event = field(default_factory=threading.Event)
    asked: int = 0

    def answer(self) -> str:
        self.asked += 1
        assert self.may_answer.wait(30)
        return f"{self.name} answers"


@pytest.fixture
def quick() -> QueryContext:
    found = QueryContext("quick")
    found.may_answer.set()
    return found


@pytest.fixture
def held() -> Iterator[QueryContext]:
    found = QueryContext("held")
    yield found
    found.may_answer.set()


def inquiry(**known: Known) -> Inquiry:
    hosts: dict[str, Any] = dict(known)
    return Inquiry(hosts.get)


def test_a_silent_host_does_not_hold_up_the_others(quick: QueryContext, held: QueryContext) -> None:
    outcomes = inquiry(held=Known(1000)).each([held, quick], QueryContext.answer, PATIENCE)
    assert [(one.name, one.value) for one in outcomes] == [("held", None), ("quick", "quick answers")]
    assert str(outcomes[0].error) == "held: no answer within 0.1 s"


def test_a_host_that_owes_an_answer_and_is_silent_is_not_asked_again(quick: QueryContext, held: QueryContext) -> None:
    asks = inquiry(held=Known(1000))
    for _ in range(3):
        assert [bool(one.error) for one in asks.each([held, quick], QueryContext.answer, PATIENCE)] == [True, False]
    assert (held.asked, quick.asked) == (1, 3)


def test_a_host_that_has_answered_late_is_asked_again(held: QueryContext) -> None:
    asks = inquiry()
    asks.each([held], QueryContext.answer, PATIENCE)
    held.may_answer.set()
    while (outcome := asks.each([held], QueryContext.answer, PATIENCE)[0]).error:  # its thread has yet to end
        pass
    assert outcome.value == "held answers"


def test_a_host_that_shows_signs_of_life_may_take_its_time(held: QueryContext) -> None:
    known = Known(0.0)
    threading.Timer(3 * PATIENCE, held.may_answer.set).start()
    (outcome,) = inquiry(held=known).each([held], QueryContext.answer, PATIENCE)
    assert outcome.value == "held answers"
    assert known.woken


def test_a_hosts_error_is_its_outcome_and_a_bug_is_raised(quick: QueryContext) -> None:
    def fails(asked: QueryContext) -> str:
        raise HelperError(asked.name, "no")

    def breaks(asked: QueryContext) -> str:
        raise LookupError(asked.name)

    (outcome,) = inquiry().each([quick], fails, PATIENCE)
    assert str(outcome.error) == "quick: no"
    with pytest.raises(LookupError):
        inquiry().each([quick], breaks, PATIENCE)


def test_nobody_is_asked_for_nothing() -> None:
    assert inquiry().each([], QueryContext.answer, PATIENCE) == []
