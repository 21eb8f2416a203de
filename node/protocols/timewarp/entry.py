"""A command in the queue of a processor (node/protocols/timewarp/execution.py): when it was handed over, taken back and
delivered for good, and what that has cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from node.effects import Deliver, Effect, Report, Undo
from node.protocols.timewarp.states import Draw
from node.trace import Level, Notice
from node.wire import Message

Key: TypeAlias = tuple[int, ...]
"""The place of a command in the order; keys are compared as tuples. Those of one execution are equally long."""


class Command(NamedTuple):
    """`received_ns`: when the ordering core got it (its own: when it was submitted)."""

    key: Key
    message: Message
    received_ns: int
    is_follow_up: bool


class _Unsaved:
    """In place of a state that was not saved: any value may be a state, None too."""


UNSAVED: Final = _Unsaved()


@dataclass(slots=True)
class Entry:
    """`timestamp`: what the local clock shows from its beginning on. `since_ns`: when it came into the queue.
    `decoded`: the machine's command.
    """

    command: Command
    timestamp: int
    is_optimistic: bool
    since_ns: int
    draw: Draw
    decoded: Any
    state: Any = UNSAVED
    """After its execution, if that was saved and is valid."""
    first_ns: int | None = None
    """When it was first handed over ..."""
    last_ns: int = 0
    """... and last."""
    has_ended: bool = False
    """It has been executed to its end at least once."""
    is_touched: bool = False
    """It was undone, or has undone others."""
    is_silent: bool = False
    """Its follow-ups were settled when the order ended: executing it sends nothing."""

    @property
    def is_for_host(self) -> bool:
        """Whether the host gets it from us: not follow-ups, and pessimistic ones come from their protocol."""
        return self.is_optimistic and not self.command.is_follow_up

    def hand_over(self, now_ns: int, out: list[Effect]) -> None:
        self.last_ns = now_ns
        if self.first_ns is None:
            self.first_ns = now_ns
        if self.is_for_host:
            out.append(self._delivery(Level.OPTIMISTIC))

    def take_back(self, out: list[Effect]) -> None:
        self.state = UNSAVED
        self.is_touched = True
        if self.is_for_host:
            message = self.command.message
            out.append(
                Undo(
                    payload=message.payload,
                    origin=message.origin,
                    incarnation=message.incarnation,
                    seq=message.seq,
                    inner=message.inner,
                )
            )

    def deliver(self, out: list[Effect], *, reports_costs: bool) -> None:
        """It is final, and was handed over."""
        if self.is_for_host:
            out.append(self._delivery(Level.FINAL))
        if self.is_optimistic and reports_costs:
            self._report_costs(out)

    def conclude(self, now_ns: int, out: list[Effect], *, is_shown: bool, reports_costs: bool) -> None:
        """The order has ended: it is final, executed or not. `is_shown`: the host has it as optimistic."""
        if not is_shown:
            self.last_ns = now_ns
            self.first_ns = now_ns if self.first_ns is None else self.first_ns
        self.deliver(out, reports_costs=reports_costs)
        self.is_optimistic = False
        self.is_silent = True

    def _delivery(self, level: Level) -> Deliver:
        message = self.command.message
        return Deliver(
            payload=message.payload,
            origin=message.origin,
            incarnation=message.incarnation,
            seq=message.seq,
            level=level,
            inner=message.inner,
        )

    def _report_costs(self, out: list[Effect]) -> None:
        assert self.first_ns is not None
        origin = self.command.message.origin
        cost_ns = self.last_ns - self.command.received_ns if self.is_touched else 0
        out.append(Report(code=Notice.COST, member=origin, value=cost_ns))
        if self.last_ns > self.first_ns:
            out.append(Report(code=Notice.REDONE, member=origin, value=self.last_ns - self.first_ns))
