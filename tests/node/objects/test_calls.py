"""Bodies of calls, replies and states: they arrive as they were sent, and an attacker's bytes are refused."""

from __future__ import annotations

from typing import Any

import pytest

from node.errors import RemoteError
from node.objects.addresses import GroupId, Reference
from node.objects.api.calls import (
    MAX_CHAIN,
    MAX_TEXT,
    Body,
    CallBody,
    CallId,
    NameBody,
    Outcome,
    ReplyBody,
    StateBody,
    decode_body,
    encode_body,
)
from node.objects.api.errors import BadArguments, Deadlock, DeadObject, NoSuchMethod, NotAValue, RemoteException
from node.objects.api.values import Pointer, encode_value

US, THEM = Reference(1, 2, 3), Reference(4, 5, 6)
GROUP = GroupId(1, 2, 3, 4)
BODIES: list[Body] = [
    CallBody(call=CallId(US, 1), name="add"),
    CallBody(
        call=CallId(US, 2**40),
        name="add",
        arguments=(1, [2.5, None]),
        keywords={"much": {"x": b"y"}},
        chain=(CallId(US, 1), CallId(THEM, 9)),
    ),
    ReplyBody(number=1, member=US),
    ReplyBody(number=7, member=US, value=[1, (2,)]),
    ReplyBody(number=7, member=US, outcome=Outcome.EXCEPTION, type_name="ValueError", text="no"),
    ReplyBody(number=7, member=US, outcome=Outcome.DEADLOCK, text="circle"),
    StateBody(group=GROUP, timestamp=5, state={"count": 3}),
    StateBody(group=GROUP, timestamp=0, state=None, problem="none"),
]


def bind(pointer: Pointer) -> object:
    return pointer


@pytest.mark.parametrize("body", BODIES)
def test_bodies_arrive_as_they_were_sent(body: Body) -> None:
    assert decode_body(encode_body(body), bind) == body


def test_a_name_is_its_own_text() -> None:
    assert encode_body(NameBody(name="números")) == "números".encode()
    assert encode_body(NameBody()) == b""


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (ReplyBody(number=1, member=US), type(None)),
        (ReplyBody(number=1, member=US, outcome=Outcome.EXCEPTION), RemoteException),
        (ReplyBody(number=1, member=US, outcome=Outcome.NO_SUCH_METHOD), NoSuchMethod),
        (ReplyBody(number=1, member=US, outcome=Outcome.BAD_ARGUMENTS), BadArguments),
        (ReplyBody(number=1, member=US, outcome=Outcome.DEAD_OBJECT), DeadObject),
        (ReplyBody(number=1, member=US, outcome=Outcome.DEADLOCK), Deadlock),
    ],
)
def test_outcomes_are_exceptions_at_the_caller(reply: ReplyBody, kind: type) -> None:
    assert type(reply.error) is kind


CALLS: tuple[Any, ...] = (
    None,
    7,
    (),
    (US, 1, "add", (), {}),
    (1, 1, "add", (), {}, ()),
    (US, 0, "add", (), {}, ()),
    (US, -1, "add", (), {}, ()),
    (US, True, "add", (), {}, ()),
    (US, 1, b"add", (), {}, ()),
    (US, 1, "add", [], {}, ()),
    (US, 1, "add", US, {}, ()),
    (US, 1, "add", (), {1: 2}, ()),
    (US, 1, "add", (), {}, (US,)),
    (US, 1, "add", (), {}, (1, US)),
    (US, 1, "add", (), {}, (US, 0)),
    (US, 1, "add", (), {}, (US, 1) * (MAX_CHAIN + 1)),
    [US, 1, "add", (), {}, ()],
)
REPLIES = (
    (0, US, 0, None, "", ""),
    (1, US, 99, None, "", ""),
    (1, US, 0, None, "", "x" * (MAX_TEXT + 1)),
    (1, US, 0, None, "x" * (MAX_TEXT + 1), ""),
    (1, 5, 0, None, "", ""),
    (True, US, 0, None, "", ""),
)
STATES = ((GROUP, -1, None, ""), (US, 1, None, ""), (GROUP, 1, None, "x" * (MAX_TEXT + 1)))


@pytest.mark.parametrize(
    "data",
    [
        *(b"\x01" + encode_value(fields) for fields in CALLS),
        *(b"\x02" + encode_value(fields) for fields in REPLIES),
        *(b"\x03" + encode_value(fields) for fields in STATES),
        b"\x00",
        b"\x04" + encode_value(()),
    ],
)
def test_bodies_that_nobody_sends_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        decode_body(data, bind)


def test_an_empty_body_is_refused() -> None:
    with pytest.raises(RemoteError, match="TRUNCATED"):
        decode_body(b"", bind)


def test_what_is_no_value_is_refused_before_it_is_sent() -> None:
    with pytest.raises(NotAValue):
        encode_body(ReplyBody(number=1, member=US, value={1}))
