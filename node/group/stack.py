"""The streams of one view and the ordering core above them.

A multicast or unicast of the core becomes a submission of the streams, and a delivery of the streams becomes a message
for the core; effects are processed first in, first out. The stack can be held (nothing goes up), frozen (the view is
ending: nothing goes up or out) and closed. Without a core the streams carry the application payloads: plain reliable
multicast. Timers of the streams have layer 0, timers of the core the layers above.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from node.core import Closing, Submission, ViewCore, ViewStreams
from node.effects import CancelTimer, Deliver, Effect, Multicast, Report, Send, SetTimer, Timer, inner_message
from node.errors import LocalError, RemoteError
from node.trace import GroupReport, Level, decode_stamp
from node.wire import Message, encode_message


class ViewStack:
    """`core` None until the group's state has come; `has_core`: whether there will be a core. `is_uniform`: a delivery
    waits until all members have received everything that this member had received at that time. `reports_messages`:
    whether each submission that the core takes, and each message that it sends or is given, is reported (TAKEN, SENT,
    GIVEN)."""

    def __init__(
        self,
        *,
        me: int,
        view: int,
        streams: ViewStreams,
        has_core: bool,
        is_uniform: bool,
        reports_messages: bool = False,
    ) -> None:
        self._me = me
        self._view = view
        self.streams = streams
        self._has_core = has_core
        self._is_uniform = is_uniform
        self._reports_messages = reports_messages
        self._sent: Counter[int] = Counter()  # by target, ourselves for all: messages of the core; counted for reports
        self.core: ViewCore | None = None
        self._is_open = False  # whether messages go up: the stack is started, and neither held nor frozen
        self.is_frozen = False
        self._waiting: deque[Submission] = deque()  # submissions of the core that the streams have not taken yet
        self._armed: set[Timer] = set()  # timers of the core, as the host knows them
        self._deferred: list[Timer] = []  # timers that were due while the stack was held
        self._unstable: deque[tuple[Deliver, Mapping[int, int]]] = deque()
        """Deliveries that wait for stability, each with this member's positions at that time, its own stream including
        `_waiting`."""

    @property
    def can_submit(self) -> bool:
        if not self._is_open or self.is_frozen or self._waiting or not self.streams.can_submit:
            return False
        return self.core.can_submit if self.core is not None else not self._has_core

    @property
    def is_idle(self) -> bool:
        is_empty = not self._waiting and not self._unstable
        return is_empty and self.streams.is_idle and (self.core is None or self.core.is_idle)

    @property
    def buffered(self) -> int:
        core = self.core.buffered if self.core is not None else 0
        return self.streams.buffered + core + len(self._waiting) + len(self._unstable)

    # Phases.

    def start(self, core: ViewCore | None, now_ns: int) -> list[Effect]:
        """The core has the group's state: messages go up from now on."""
        assert (core is not None) == self._has_core and not self._is_open
        self.core = core
        out = self._run(True, self._noted(core.on_start(now_ns)), now_ns) if core is not None else []
        return out + self.hold(False, now_ns)

    def hold(self, is_held: bool, now_ns: int) -> list[Effect]:
        """While the stack is held, the streams go on receiving, nothing goes up, and timers of the core wait."""
        self._is_open = not is_held
        if is_held or self.is_frozen:
            self.streams.hold(True, now_ns)
            return []
        out = self._run(False, self.streams.hold(False, now_ns), now_ns)
        deferred, self._deferred = self._deferred, []
        for timer in deferred:
            out += self._on_core_timer(timer, now_ns)
        return out

    def freeze(self, now_ns: int) -> list[Effect]:
        """The view is ending: the core gets no more inputs, and this member's stream ends with the core's last
        submissions."""
        assert not self.is_frozen
        self.is_frozen = True
        self._is_open = False
        out = self.streams.freeze(self._waiting, now_ns)
        self._waiting.clear()
        out += [CancelTimer(timer=timer) for timer in sorted(self._armed)]
        self._armed.clear()
        self._deferred.clear()
        return out

    def close(self, cut: Mapping[int, int], survivors: frozenset[int], now_ns: int) -> Closing:
        """Close the core of a survivor that has everything of the cut."""
        out: list[Effect] = [self._final(delivery) for delivery, _ in self._unstable]
        self._unstable.clear()
        if self._has_core:
            assert self.core is not None, "a member without the group's state has nothing to close"
            rest = sorted(self.streams.rest(cut).items())
            inside = {origin: _all_inside(messages) for origin, messages in rest}
            if self._reports_messages:
                out += [self._given(origin, message.seq, False) for origin, messages in rest for message in messages]
            closing = self.core.close(inside, survivors, now_ns)
        else:
            closing = self.streams.close(cut, now_ns)
        out += [self._final(effect) if isinstance(effect, Deliver) else effect for effect in closing.effects]
        return Closing(effects=tuple(out), handed_back=closing.handed_back, memory=closing.memory)

    # Inputs.

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError("the group takes no submission now: ask can_submit before")
        if self.core is None:
            return self._run(False, self.streams.on_submit(submission, now_ns), now_ns)
        effects = self._noted(self.core.on_submit(submission, now_ns))
        if self._reports_messages:
            number = decode_stamp(submission.payload).number
            effects.insert(0, Report(code=GroupReport.TAKEN, member=self._me, value=number))
        return self._run(True, effects, now_ns)

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        effects = self.streams.on_message(message, source, now_ns)
        if not effects and not self._waiting and not self._unstable:
            return effects
        return self._run(False, effects, now_ns)

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        if timer.layer == 0:
            return self._run(False, self.streams.on_timer(timer, now_ns), now_ns)
        self._armed.discard(timer)
        if not self._is_open:
            self._deferred.append(timer)
            return []
        return self._on_core_timer(timer, now_ns)

    def _on_core_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        assert self.core is not None
        return self._run(True, self._noted(self.core.on_timer(timer._replace(layer=timer.layer - 1), now_ns)), now_ns)

    # Between core and streams.

    def _run(self, is_core: bool, effects: list[Effect], now_ns: int) -> list[Effect]:
        """Process the effects of one call of the core or of the streams, and of the calls that follow from them.
        Returns the effects that leave the stack."""
        work = deque([(is_core, effects)])
        out: list[Effect] = []
        while True:
            while work:
                is_core, effects = work.popleft()
                for effect in effects:
                    if is_core:
                        self._core_effect(effect, out)
                    elif isinstance(effect, Deliver) and self.core is not None:
                        work.append((True, self._raise_to_core(effect, now_ns)))
                    elif isinstance(effect, Deliver):
                        self._hand_over(effect, out)
                    else:
                        out.append(effect)
            if not self._waiting or self.is_frozen or not self.streams.can_submit:
                break
            work.append((False, self.streams.on_submit(self._waiting.popleft(), now_ns)))
        if self._unstable:
            self._hand_over_stable(now_ns, out)
        return out

    def _core_effect(self, effect: Effect, out: list[Effect]) -> None:
        match effect:
            case Deliver():  # far the most frequent
                self._hand_over(effect, out)
            case Multicast(message=message, is_near=is_near):
                assert not is_near, "a core of a view cannot multicast to its sub-network alone"
                self._waiting.append(_submission(message, target=None))
            case Send(target=target, message=message):
                self._waiting.append(_submission(message, target=target))
            case SetTimer(timer=timer, at_ns=at_ns):
                raised = timer._replace(layer=timer.layer + 1)
                self._armed.add(raised)
                out.append(SetTimer(timer=raised, at_ns=at_ns))
            case CancelTimer(timer=timer):
                raised = timer._replace(layer=timer.layer + 1)
                self._armed.discard(raised)
                out.append(CancelTimer(timer=raised))
            case _:
                out.append(effect)

    def _raise_to_core(self, delivery: Deliver, now_ns: int) -> list[Effect]:
        assert self.core is not None
        try:
            effects = self._noted(self.core.on_message(inner_message(delivery), delivery.origin, now_ns))
        except RemoteError as error:
            # Only the inner message is dropped, not the other effects of the streams' call.
            return [Report(code=error.reason, member=delivery.origin, value=len(delivery.payload))]
        if self._reports_messages and delivery.seq:  # 0: sent to itself
            effects.insert(0, self._given(delivery.origin, delivery.seq, delivery.is_unicast))
        return effects

    # Reports of the messages of the core.

    def _noted(self, effects: list[Effect]) -> list[Effect]:
        """The effects of one call of the core, after reports of the messages that it sends."""
        if not self._reports_messages:
            return effects
        reports: list[Effect] = []
        for effect in effects:
            match effect:
                case Multicast():
                    reports.append(self._sent_to(self._me))
                case Send(target=target) if target != self._me:
                    reports.append(self._sent_to(target))
        return reports + effects

    def _sent_to(self, target: int) -> Report:
        """`target`: ourselves for all members."""
        self._sent[target] += 1
        name = _name(self._view, self._sent[target], target != self._me)
        return Report(code=GroupReport.SENT, member=target, value=name)

    def _given(self, origin: int, number: int, is_unicast: bool) -> Report:
        return Report(code=GroupReport.GIVEN, member=origin, value=_name(self._view, number, is_unicast))

    # Uniform delivery.

    def _hand_over(self, delivery: Deliver, out: list[Effect]) -> None:
        if not self._is_uniform or delivery.level is Level.OPTIMISTIC:
            out.append(delivery)
        else:
            received = self.streams.positions()
            # The order of this delivery may depend on a submission of the core, sent or not.
            received[self._me] += sum(submission.target is None for submission in self._waiting)
            self._unstable.append((delivery, received))

    def _hand_over_stable(self, now_ns: int, out: list[Effect]) -> None:
        """Hand over deliveries for which every member has received all that this member had received. Those that become
        stable while the stack is held or frozen wait until it is open again, or closed.
        """
        everywhere = self.streams.acknowledged()
        while self._unstable:
            delivery, received = self._unstable[0]
            if any(everywhere.get(origin, 0) < position for origin, position in received.items()):
                if not self.is_frozen:
                    out.extend(self.streams.acknowledge_soon(now_ns))
                break
            if not self._is_open:
                break
            self._unstable.popleft()
            out.append(self._final(delivery))

    def _final(self, delivery: Deliver) -> Deliver:
        if not self._is_uniform or delivery.level is Level.FINAL:
            return delivery
        return replace(delivery, level=Level.FINAL)


def _name(view: int, number: int, is_unicast: bool) -> int:
    """Name of a message of a core in a report. Each stream has the numbers of its messages, because all of them are of
    the core."""
    return view << 33 | is_unicast << 32 | number


def _submission(message: Message, target: int | None) -> Submission:
    return Submission(payload=encode_message(message), inner=message.kind, flags=message.flags, target=target)


def _all_inside(messages: list[Message]) -> list[Message]:
    """The core's messages inside these; one that does not decode is skipped: its bytes are the same at every member."""
    found: list[Message] = []
    for message in messages:
        with suppress(RemoteError):
            found.append(inner_message(message))
    return found
