"""A core on top of a core, itself a core.

- What the upper core multicasts or sends becomes a submission of the lower core: the message is encoded into the
  payload, its kind goes into `inner`, and its flags onto the outermost message.
- What the lower core delivers becomes a message for the upper core; `source` is its origin.
- The upper core cannot send a near multicast: what the lower core promises (order, repair), it promises to everybody.
- Timers of both cores live side by side: the upper core's have a higher `layer`.
- While the lower core takes nothing (flow control), messages of the upper core wait here in order, and `can_submit` is
  false.
- When either core is over, the stack is: it is idle and takes nothing. What waited for the lower core is dropped, and
  the upper core is not woken again, so that none of its timers is armed for ever.

Order. Effects are worked off first in, first out: all effects of one call to a core come before those that follow from
its next call. So each core's effects keep the order in which it gave them, whatever its messages cause meanwhile.
"""

from __future__ import annotations

from collections import deque

from node.core import Core, Submission
from node.effects import CancelTimer, Deliver, Effect, Multicast, Report, Send, SetTimer, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.wire import Message, decode_message, encode_message


class Stack(Core):
    """`upper` over `lower`. Either may be a stack."""

    def __init__(self, *, lower: Core, upper: Core) -> None:
        self._lower = lower
        self._upper = upper
        self._waiting: deque[Submission] = deque()

    @property
    def lower(self) -> Core:
        return self._lower

    @property
    def upper(self) -> Core:
        return self._upper

    @property
    def depth(self) -> int:
        return self._lower.depth + self._upper.depth

    @property
    def buffered(self) -> int:
        if self.has_ended:
            return self._lower.buffered
        return self._lower.buffered + self._upper.buffered + len(self._waiting)

    @property
    def phase(self) -> str:
        return "/".join(phase for phase in (self._lower.phase, self._upper.phase) if phase)

    @property
    def can_submit(self) -> bool:
        return not self._waiting and self._upper.can_submit and self._lower.can_submit

    @property
    def is_idle(self) -> bool:
        return self.has_ended or (not self._waiting and self._upper.is_idle and self._lower.is_idle)

    @property
    def has_ended(self) -> bool:
        return self._lower.has_ended or self._upper.has_ended

    @property
    def waiting(self) -> int:
        """Messages of the upper core that the lower core has not taken yet."""
        return len(self._waiting)

    def on_start(self, now_ns: int) -> list[Effect]:
        work = deque([(False, self._lower.on_start(now_ns)), (True, self._upper.on_start(now_ns))])
        return self._run(work, now_ns)

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if self.has_ended:
            raise LocalError("this incarnation is over and takes no submission: ask can_submit before")
        return self._run(deque([(True, self._upper.on_submit(submission, now_ns))]), now_ns)

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        effects = self._lower.on_message(message, source, now_ns)
        if not effects and not self._waiting:
            return effects
        return self._run(deque([(False, effects)]), now_ns)

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        if timer.layer < self._lower.depth:
            return self._run(deque([(False, self._lower.on_timer(timer, now_ns))]), now_ns)
        if self.has_ended:
            return []
        mine = timer._replace(layer=timer.layer - self._lower.depth)
        return self._run(deque([(True, self._upper.on_timer(mine, now_ns))]), now_ns)

    def _run(self, work: deque[tuple[bool, list[Effect]]], now_ns: int) -> list[Effect]:
        """Work off all effects; those that leave the stack are returned. Each entry is what one call gave: (by the
        upper core, its effects).
        """
        out: list[Effect] = []
        while True:
            while work:
                is_upper, effects = work.popleft()
                for effect in effects:
                    if is_upper:
                        self._upper_effect(effect, out)
                    elif isinstance(effect, Deliver):
                        work.append((True, self._raise_to_upper(effect, now_ns)))
                    else:
                        out.append(effect)
            if not self._waiting:
                return out
            if not self._lower.can_submit:
                if self.has_ended:
                    self._waiting.clear()
                return out
            work.append((False, self._lower.on_submit(self._waiting.popleft(), now_ns)))

    def _upper_effect(self, effect: Effect, out: list[Effect]) -> None:
        match effect:
            case Deliver():  # far the most frequent
                out.append(effect)
            case Multicast(message=message, is_near=is_near):
                assert not is_near, "a core above another cannot multicast to its sub-network alone"
                self._waiting.append(_submission(message, target=None))
            case Send(target=target, message=message):
                self._waiting.append(_submission(message, target=target))
            case SetTimer(timer=timer, at_ns=at_ns):
                out.append(SetTimer(timer=self._raised(timer), at_ns=at_ns))
            case CancelTimer(timer=timer):
                out.append(CancelTimer(timer=self._raised(timer)))
            case _:
                out.append(effect)

    def _raised(self, timer: Timer) -> Timer:
        return timer._replace(layer=timer.layer + self._lower.depth)

    def _raise_to_upper(self, delivery: Deliver, now_ns: int) -> list[Effect]:
        try:
            return self._upper.on_message(_message_inside(delivery), delivery.origin, now_ns)
        except RemoteError as error:
            # The lower core has done its part of the work: only the upper message is dropped, not the effects of the
            # call.
            return [Report(code=error.reason, member=delivery.origin, value=len(delivery.payload))]


def _submission(message: Message, target: int | None) -> Submission:
    return Submission(payload=encode_message(message), inner=message.kind, flags=message.flags, target=target)


def _message_inside(delivery: Deliver) -> Message:
    message = decode_message(delivery.payload)
    if (message.kind, message.origin, message.incarnation) != (delivery.inner, delivery.origin, delivery.incarnation):
        raise RemoteError(DropReason.MALFORMED, "the inner message does not agree with the outer one")
    return message
