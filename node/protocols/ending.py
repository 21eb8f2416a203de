"""The stream of an incarnation that is over: how far the survivors take it together."""

from __future__ import annotations

from node.protocols.stream import IncomingStream
from node.protocols.words import MAX_NUMBER, NOT_PARTY


class Ending:
    """`stream` is None when we never took part in it; then there is nothing to do but to say so when asked."""

    __slots__ = ("_reports", "final", "has_ended", "is_settled", "stream")

    def __init__(self, stream: IncomingStream | None) -> None:
        self.stream = stream
        self.final: int | None = None
        """The last number that exists for the survivors, once they have all told their positions under one view."""
        self.has_ended = stream is None
        """All up to `final` is delivered."""
        self.is_settled = stream is None
        """The same is true for everybody."""
        self._reports: dict[int, int] = {}
        if stream is not None:
            stream.close()

    @property
    def position(self) -> int:
        """What we tell the others."""
        return NOT_PARTY if self.stream is None else self.stream.position

    def restart(self) -> None:
        """The view has changed: what was told under the old one no longer counts. What has ended here has ended with
        the same number everywhere: a position beyond it nobody can have, and the new final number cannot be below our
        position.
        """
        if not self.is_settled:
            self._reports.clear()
            if not self.has_ended:
                self.final = None

    def report(self, member: int, number: int) -> None:
        """`member` says under our view that it has all up to `number`, or NOT_PARTY."""
        self._reports[member] = number

    def progress(self, member: int) -> int | None:
        """A number that changes with what `member` tells; None when there is nothing more to tell."""
        told = self._reports.get(member, -1)
        return None if self._is_through(member) else told + 1

    def decide(self, live: tuple[int, ...]) -> None:
        """Fix the final number as soon as everybody has told its position."""
        if self.stream is not None and self.final is None and all(member in self._reports for member in live):
            told = [number for number in self._reports.values() if number != NOT_PARTY]
            self.final = max([self.stream.position, *told])
            self.stream.limit(self.final)

    def settle(self, live: tuple[int, ...]) -> None:
        """Let go of the messages once nobody can need them."""
        if self.stream is not None and self.has_ended and all(map(self._is_through, live)):
            self.is_settled = True
            self.stream.held.clear()

    def holders(self, live: tuple[int, ...]) -> list[int]:
        """Those who have more of it than we."""
        return [member for member in live if self.position < self._reports.get(member, 0) <= MAX_NUMBER]

    def _is_through(self, member: int) -> bool:
        return self.final is not None and self._reports.get(member) in (self.final, NOT_PARTY)
