"""The boundary below an address space: what carries its messages, and what it is told.

A Transport serves one Space. It never calls back from within `submit`, and whatever it calls runs on the space's loop
(asyncio's running loop). It copies, or encodes and decodes (node.objects.calls), every body: no two objects ever share
something that can be changed.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from node.objects.addresses import Addressing
from node.objects.calls import Body
from node.objects.news import News


class Origin(NamedTuple):
    """The life of a machine that sent something: known from below, whatever the body claims."""

    member: int
    incarnation: int


class Receiver(Protocol):
    """What a Transport calls: a Space."""

    def on_deliver(self, place: int, body: Body, origin: Origin) -> None:
        """`body` is for our object number `place`; in the order of delivery. RemoteError, before anything has changed,
        when no honest sender says that."""

    def on_news(self, place: int, number: int, news: News) -> None:
        """About submission `number` of our object `place`; 0: about none of ours. RemoteError as above."""


class Transport(Protocol):
    """What a Space sends with."""

    def attach(self, receiver: Receiver) -> None:
        """Called once, before anything else: whom to call."""

    def submit(self, addressing: Addressing, body: Body) -> int:
        """Send `body`, behind everything that this space has submitted before, and return the number by which news name
        it. NotAValue when the body is too large or holds what is no data; never refused for another reason: a space
        bounds what it has under way itself."""
