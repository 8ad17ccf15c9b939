"""Datagrams: what is read is what was written, nobody else's is believed, and nothing makes the reader fall over."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.discover.message import (
    KINDS,
    MAX_DATAGRAM_BYTES,
    MAX_HEARD,
    MAX_MISSING,
    MAX_WORLD_SIZE,
    Codec,
    Message,
    UntrustedDatagram,
)

KEY, OTHER = b"0123456789abcdef", b"fedcba9876543210"
nonces = st.from_regex(r"[0-9a-f]{16}", fullmatch=True)
some_ranks = st.integers(0, MAX_WORLD_SIZE - 1)
some_places = st.integers(1, MAX_WORLD_SIZE).flatmap(lambda size: st.tuples(st.integers(0, size - 1), st.just(size)))
messages = st.builds(
    lambda place, **fields: Message(rank=place[0], world_size=place[1], **fields),
    place=some_places,
    kind=st.sampled_from(KINDS),
    sender=nonces,
    to=st.just("") | nonces,
    address=st.just("") | st.ip_addresses().map(str),
    port=st.integers(0, 65535),
    turn=st.integers(0, 2**40),
    complete=st.booleans(),
    heard=st.lists(st.tuples(some_ranks, nonces), max_size=MAX_HEARD).map(tuple),
    missing=st.lists(some_ranks, max_size=MAX_MISSING).map(tuple),
    missing_count=st.integers(0, MAX_WORLD_SIZE),
)
codecs = st.builds(Codec, id=st.text(min_size=1), key=st.none() | st.binary(min_size=16))
HELLO = Message(kind="answer", sender="0" * 16, rank=1, world_size=2, address="10.0.0.2")


@given(message=messages, codec=codecs)
def test_what_is_read_is_what_was_written_and_fits(message: Message, codec: Codec) -> None:
    datagram = codec.encode(message)
    assert codec.decode(datagram) == message
    assert len(datagram) <= MAX_DATAGRAM_BYTES


@given(data=st.binary(max_size=3000), codec=codecs)
def test_noise_is_nothing(data: bytes, codec: Codec) -> None:
    assert codec.decode(data) is None


@given(body=st.binary(max_size=600) | st.recursive(st.none(), st.lists).map(lambda value: json.dumps(value).encode()))
def test_a_body_that_is_no_message_is_nothing(body: bytes) -> None:
    codec = Codec(id="job7", key=None)
    head = codec.encode(HELLO).partition(b"{")[0]
    assert codec.decode(head + body) is None
    assert codec.decode(head + b"[" * 1000) is None


@pytest.mark.parametrize(
    "wrong",
    [
        '{"kind":"answer"}',
        '{"kind":"shout","sender":"0123456789abcdef"}',
        '{"kind":"answer","sender":"x"}',
        '{"kind":"answer","sender":7}',
        '{"kind":"answer","sender":"0123456789abcdef","rank":-1}',
        '{"kind":"answer","sender":"0123456789abcdef","rank":true}',
        '{"kind":"answer","sender":"0123456789abcdef","rank":1.5}',
        '{"kind":"answer","sender":"0123456789abcdef","rank":4096}',
        '{"kind":"answer","sender":"0123456789abcdef","address":"$(reboot)"}',
        '{"kind":"answer","sender":"0123456789abcdef","address":"fe80::1%\\u001b[2J\\n$(reboot)"}',
        '{"kind":"answer","sender":"0123456789abcdef","address":1}',
        '{"kind":"answer","sender":"0123456789abcdef","rank":2,"world_size":2}',
        '{"kind":"answer","sender":"0123456789abcdef","port":65536}',
        '{"kind":"answer","sender":"0123456789abcdef","heard":[[1]]}',
        '{"kind":"answer","sender":"0123456789abcdef","heard":{"1":2}}',
        '{"kind":"answer","sender":"0123456789abcdef","more":1}',
        '["kind"]',
        "7",
    ],
)
def test_a_field_that_cannot_be_is_nothing(wrong: str) -> None:
    codec = Codec(id="job7", key=None)
    head = codec.encode(HELLO).partition(b"{")[0]
    assert codec.decode(head + wrong.encode()) is None


@given(message=messages, place=st.integers(21, 2000), change=st.integers(1, 255))
def test_a_changed_byte_is_not_believed(message: Message, place: int, change: int) -> None:
    codec = Codec(id="job7", key=KEY)
    datagram = bytearray(codec.encode(message))
    datagram[21 + (place - 21) % (len(datagram) - 21)] ^= change
    assert codec.decode(bytes(datagram)) == UntrustedDatagram(reason="it uses another key")


def test_many_ids_do_not_mix() -> None:
    datagram = Codec(id="job7", key=KEY).encode(HELLO)
    for other in ("job8", "job", "job77", "JOB7"):
        assert Codec(id=other, key=KEY).decode(datagram) is None


def test_who_has_not_the_key_is_not_believed_and_why_is_known() -> None:
    keyed, plain, other = (Codec(id="job7", key=key) for key in (KEY, None, OTHER))
    assert other.decode(keyed.encode(HELLO)) == UntrustedDatagram(reason="it uses another key")
    assert keyed.decode(plain.encode(HELLO)) == UntrustedDatagram(reason="it uses no key")
    assert plain.decode(keyed.encode(HELLO)) == UntrustedDatagram(reason="it uses a key, this one has none")


def test_a_signature_is_of_one_id() -> None:
    """A datagram of another job with the same key, made to look like this one's."""
    here, there = Codec(id="job7", key=KEY), Codec(id="job8", key=KEY)
    mine, theirs = here.encode(HELLO), there.encode(HELLO._replace(rank=0))
    assert here.decode(mine[:21] + theirs[21:]) == UntrustedDatagram(reason="it uses another key")
