"""Small-scope exploration: everything that can happen to a few members and a few messages, tried out.

    exploration = explore(build, scope=Scope(submissions=(1, 1, 1)), promises=(Property.CAUSAL,))

A state is what all members, channels and budgets are; a step is one submission, one arrival, one loss, one duplication
or one timer. From each state every step is taken. States that are the same (testbed.fuzz.local) are looked at once,
where what the applications have seen is part of a state: so each possible history is judged. Where no step is left the
oracle judges what happened: the safety properties, and those of what happens eventually, for everything has.

Time. When nothing is under way the timer that is due first fires (of those due together, each). `early_timers` timers
on a path may also fire before their turn: while something is under way, or ahead of another member's. Only a timer
moves its member's clock. So what hangs on durations alone is not explored.

A member's core is copied when it is given something new (testbed.fuzz.local). Running the path again from its beginning
instead would cost as many calls as it is long: from four on that is dearer than the copy (60 us for the sequencer).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.checks.linear import check_incarnations
from analysis.checks.properties import Finding, Incarnation, Property, Raw, Verdict
from node.core import Core, Membership, Submission
from node.effects import Effect, Multicast, Report, Send, Timer
from node.errors import RemoteError
from node.group.core import GroupCore
from node.trace import Event
from node.wire import Kind, Message, decode_message, encode_message
from testbed.fuzz.local import (
    FIRST_INCARNATION,
    SUBMIT,
    TIMER,
    BrokenCoreError,
    Build,
    Given,
    Place,
    Places,
    Row,
    Turn,
    is_told,
)


class Network(enum.Enum):
    """IDEAL: first in, first out, nothing lost. CHANNELS: so, but with losses and duplications. CHAOS: any order."""

    IDEAL = "ideal"
    CHANNELS = "channels"
    CHAOS = "chaos"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How much is tried out. `submissions`: how many each member makes; what is beyond a limit is cut off."""

    submissions: tuple[int, ...]
    network: Network = Network.IDEAL
    losses: int = 0
    """On one path; so are the next two."""
    duplications: int = 0
    early_timers: int = 0
    states_max: int = 1_000_000
    depth_max: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """What was wrong at the end of a path, in a sentence, and the steps that led there."""

    kind: str
    sentence: str
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """What was seen. `cut_off`: why it is not everything; empty when it is."""

    states: int
    steps: int
    ends: int
    """Different states in which nothing is left to happen."""
    places: int
    """Different local states of members."""
    depth: int
    cut_off: str
    violation: Violation | None


def explore(build: Build, *, scope: Scope, promises: Sequence[Property]) -> Exploration:
    """Stops at the first violation. `build` makes a member's core, as in its first incarnation."""
    return _Explorer(build, scope, promises).run()


def over_ideal_channels(core: Core, membership: Membership) -> Core:
    """The core of a group's first view over ideal channels; where there is none, the core over the network."""
    upper = core.core_alone() if isinstance(core, GroupCore) else None
    return OverIdealChannels(membership, upper) if upper is not None else over_the_network(core)


def over_the_network(core: Core) -> Core:
    """A core with a transport of its own without the group layer around it, which heartbeats for ever."""
    alone = core.transport_alone() if isinstance(core, GroupCore) else None
    return core if alone is None else alone


Channels = tuple[tuple[int, ...], ...]
"""Numbers of the messages under way; from member s to member t of n: at s * n + t."""


class _State:
    """`events`: what the applications saw, in the order of all members, where properties hang on it."""

    __slots__ = ("budgets", "channels", "depth", "events", "given", "parent", "places", "turn")

    def __init__(
        self,
        places: tuple[Place, ...],
        channels: Channels,
        budgets: tuple[int, int, int],
        events: tuple[tuple[int, int, int], ...],
        parent: _State | None = None,
        given: str = "",
        turn: Turn | None = None,
    ) -> None:
        self.places = places
        self.channels = channels
        self.budgets = budgets
        self.events = events
        self.parent = parent
        self.given = given
        self.turn = turn
        self.depth: int = parent.depth + 1 if parent is not None else 0

    def way(self) -> list[_State]:
        """From the first state to this one."""
        found: list[_State] = []
        state: _State | None = self
        while state is not None:
            found.append(state)
            state = state.parent
        return found[::-1]


class _Explorer:
    def __init__(self, build: Build, scope: Scope, promises: Sequence[Property]) -> None:
        self._scope = scope
        self._promises = tuple(promises)
        self._count = len(scope.submissions)
        self._order_matters = any(kind not in _PER_MEMBER for kind in promises)
        self._places = Places(build, scope.submissions)
        self._seen: set[object] = set()
        self._steps = self._ends = self._depth = 0
        self._cut_off = ""

    def run(self) -> Exploration:
        waiting = [self._first()]
        violation = None
        while waiting and violation is None:
            violation = self._visit(waiting.pop(), waiting)
        return Exploration(
            states=len(self._seen),
            steps=self._steps,
            ends=self._ends,
            places=len(self._places),
            depth=self._depth,
            cut_off=self._cut_off,
            violation=violation,
        )

    def _visit(self, state: _State, waiting: list[_State]) -> Violation | None:
        self._depth = max(self._depth, state.depth)
        if state.depth >= self._scope.depth_max:
            self._cut_off = f"paths of more than {self._scope.depth_max} steps"
            return None
        taken = self._steps
        try:
            for following in self._following(state):
                self._steps += 1
                self._note(following, waiting)
        except BrokenCoreError as error:
            return Violation(kind="exception", sentence=str(error), path=(*_path(state), "the next step"))
        if self._steps > taken:
            return None
        self._ends += 1
        return self._judge(state)

    def _note(self, state: _State, waiting: list[_State]) -> None:
        """It is looked at later, unless it was met before."""
        mark = self._mark(state)
        if mark in self._seen:
            return
        if len(self._seen) >= self._scope.states_max:
            self._cut_off = f"more than {self._scope.states_max} states"
            return
        self._seen.add(mark)
        waiting.append(state)

    def _mark(self, state: _State) -> object:
        """The state without the way to it."""
        channels = state.channels
        if self._scope.network is Network.CHAOS:
            channels = tuple(tuple(sorted(channel)) for channel in channels)
        return tuple(place.number for place in state.places), channels, state.budgets, state.events

    # Steps.

    def _first(self) -> _State:
        turns = self._places.first
        state = _State(
            places=tuple(turn.place for turn in turns),
            channels=((),) * self._count**2,
            budgets=(self._scope.losses, self._scope.duplications, self._scope.early_timers),
            events=(),
        )
        for turn in turns:
            state.channels = self._with_sent(state.channels, turn)
        return state

    def _following(self, state: _State) -> Iterator[_State]:
        for place in state.places:
            if place.queue and place.can_submit:
                yield self._step(state, place, SUBMIT, f"{place.member} submits", state.channels, state.budgets)
        for at, channel in enumerate(state.channels):
            for position in range(len(channel) if self._scope.network is Network.CHAOS else min(1, len(channel))):
                yield from self._fates(state, at, position)
        yield from self._timers(state)

    def _fates(self, state: _State, at: int, position: int) -> Iterator[_State]:
        """Of one message under way."""
        source, target = divmod(at, self._count)
        channel = state.channels[at]
        number = channel[position]
        left = _put(state.channels, at, (*channel[:position], *channel[position + 1 :]))
        what = f"{_named(self._places.messages[number])} from {source} to {target}"
        place = state.places[target]
        losses, duplications, early = state.budgets
        yield self._step(state, place, (source, number), f"{what} arrives", left, state.budgets)
        if losses:
            yield _State(state.places, left, (losses - 1, duplications, early), state.events, state, f"{what} is lost")
        if duplications:
            budgets = (losses, duplications - 1, early)
            yield self._step(state, place, (source, number), f"{what} arrives and will again", state.channels, budgets)

    def _timers(self, state: _State) -> Iterator[_State]:
        armed = [place for place in state.places if place.timers]
        first_ns = min((place.timers[0][0] for place in armed), default=0)
        losses, duplications, early = state.budgets
        is_quiet = not any(state.channels)
        for place in armed:
            at_ns, _, timer = place.timers[0]
            is_early = not is_quiet or at_ns > first_ns
            if is_early and not early:
                continue
            budgets = (losses, duplications, early - is_early)
            yield self._step(state, place, TIMER, f"{place.member}'s timer {timer.name} fires", state.channels, budgets)

    def _step(
        self, state: _State, place: Place, given: Given, what: str, channels: Channels, budgets: tuple[int, int, int]
    ) -> _State:
        try:
            turn = self._places.turn(place, given)
        except BrokenCoreError as error:
            raise BrokenCoreError(f"{what}: {error}") from error
        member = place.member
        places = (*state.places[:member], turn.place, *state.places[member + 1 :])
        events = state.events
        if self._order_matters:
            events += tuple((member, row.event, row.detail) for row in turn.rows if is_told(row))
        return _State(places, self._with_sent(channels, turn), budgets, events, state, what, turn)

    def _with_sent(self, channels: Channels, turn: Turn) -> Channels:
        if not turn.sent:
            return channels
        found = list(channels)
        for target, number in turn.sent:
            at = turn.place.member * self._count + target
            found[at] = (*found[at], number)
        return tuple(found)

    # Ends.

    def _judge(self, state: _State) -> Violation | None:
        findings = check_incarnations(self._incarnations(state), members=range(self._count), kinds=self._promises)
        for kind, finding in findings.items():
            if finding.verdict is Verdict.FAIL:
                return Violation(kind=kind.value, sentence=sentence_of(finding), path=_path(state))
        for place in state.places:
            if not place.is_idle or place.queue:
                sentence = f"nothing is left to happen, and member {place.member} is not idle"
                return Violation(kind="rest", sentence=sentence, path=_path(state))
        return None

    def _incarnations(self, state: _State) -> dict[Incarnation, list[Raw]]:
        """The members' records, with the number of the step as the time."""
        incarnations = {turn.place.member: [_record(row, 0) for row in turn.rows] for turn in self._places.first}
        for step in state.way():
            if step.turn is not None:
                incarnations[step.turn.place.member] += [_record(row, step.depth) for row in step.turn.rows]
        for place in state.places:
            is_drained = place.is_idle and not place.queue
            incarnations[place.member].append(_record(Row(Event.STOP, int(is_drained)), state.depth + 1))
        return {Incarnation(member, FIRST_INCARNATION): records for member, records in incarnations.items()}


def sentence_of(finding: Finding) -> str:
    """The witness in words; members by number."""
    return finding.witness.sentence({}) if finding.witness is not None else f"{finding.violations} violations"


_PER_MEMBER = frozenset(
    (
        Property.VALIDITY,
        Property.AGREEMENT,
        Property.UNIFORM_AGREEMENT,
        Property.INTEGRITY,
        Property.FIFO,
        Property.CAUSAL,
        Property.TOTAL_ORDER,
    )
)
"""Properties that the members' own sequences decide, however they interleave."""


def _path(state: _State) -> tuple[str, ...]:
    return tuple(step.given for step in state.way() if step.given)


def _put(channels: Channels, at: int, channel: tuple[int, ...]) -> Channels:
    return (*channels[:at], channel, *channels[at + 1 :])


def _record(row: Row, at_ns: int) -> Raw:
    named = (row.event, row.detail, row.origin, row.incarnation, row.extra, row.number)
    return (*named, at_ns, at_ns, row.value, row.size_bytes, row.checksum)


def _named(message: Message) -> str:
    inner = "" if message.inner is Kind.APPLICATION else f" with {message.inner.name}"
    return f"{message.kind.name}{inner} #{message.seq}"


class OverIdealChannels(Core):
    """A core over ideal channels in place of streams: what it multicasts or sends travels inside a message of ours, and
    a multicast comes back to it at once, as over `reliable`. All effects of one call come before those of the next.
    """

    def __init__(self, membership: Membership, upper: Core) -> None:
        self._us = membership
        self._number = 0
        self._upper = upper

    @property
    def phase(self) -> str:
        return self._upper.phase

    @property
    def can_submit(self) -> bool:
        return self._upper.can_submit

    @property
    def is_idle(self) -> bool:
        return self._upper.is_idle

    def on_start(self, now_ns: int) -> list[Effect]:
        return self._run(self._upper.on_start(now_ns), now_ns)

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        return self._run(self._upper.on_submit(submission, now_ns), now_ns)

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        return self._run(self._upper.on_timer(timer, now_ns), now_ns)

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        return self._run(self._taken(decode_message(message.payload), now_ns), now_ns)

    def _taken(self, message: Message, now_ns: int) -> list[Effect]:
        try:
            return self._upper.on_message(message, message.origin, now_ns)
        except RemoteError as error:
            return [Report(code=error.reason, member=message.origin)]

    def _run(self, effects: list[Effect], now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        waiting: deque[Multicast | Send] = deque()
        while True:
            for effect in effects:
                (waiting if isinstance(effect, Multicast | Send) else out).append(effect)  # type: ignore[arg-type]
            if not waiting:
                return out
            first = waiting.popleft()
            target = first.target if isinstance(first, Send) else None
            if target is None:
                out.append(Multicast(message=self._around(first.message, Kind.RELIABLE_DATA)))
            elif target != self._us.member:
                out.append(Send(target=target, message=self._around(first.message, Kind.RELIABLE_UNICAST)))
            effects = self._taken(first.message, now_ns) if target in (None, self._us.member) else []

    def _around(self, message: Message, kind: Kind) -> Message:
        self._number += 1
        payload = encode_message(message)
        return self._us.message(kind, seq=self._number, flags=message.flags, inner=message.kind, payload=payload)
