"""Small-scope exploration: every execution of a few members and a few messages.

    exploration = explore(build, scope=Scope(submissions=(1, 1, 1)), promises=(Property.CAUSAL,))

A state consists of all members, channels and budgets; a step is one submission, one arrival, one loss, one duplication
or one timer. From each state every step is taken. Equal states (testbed.fuzz.local) are visited once; the history of
the applications is part of a state, so that each possible history is judged. Where no step is left, the checks judge
the history: safety, and liveness as well, because nothing more can happen. A state from which no such end can be
reached is a violation of liveness, too: from there the steps go round for ever.

Time. When no message is in transit, the timer that is due first fires (of those due together, each). `early_timers`
timers on a path may also fire before their turn: while a message is in transit, or ahead of another member's. Only a
timer moves its member's clock, so that effects of durations alone are not explored.

A member's core is copied for a new input (testbed.fuzz.local). Running the path again from its beginning instead costs
as many calls as the path is long: from four calls on, more than the copy (60 us for the sequencer).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.checks.linear import check_incarnations
from analysis.checks.properties import VIEW_PROPERTIES, Incarnation, Property, Raw, Verdict
from node.core import Core, Membership, Submission
from node.effects import Effect, Multicast, Report, Send, Timer
from node.errors import RemoteError
from node.group.core import GroupCore
from node.trace import Event
from node.wire import Kind, Message, decode_message, encode_message
from testbed.fuzz.local import (
    FIRST_INCARNATION,
    OF_MESSAGES,
    SUBMIT,
    TIMER,
    BrokenCoreError,
    Build,
    Given,
    LocalState,
    LocalStates,
    Row,
    Turn,
    is_observable,
)


class Network(enum.Enum):
    """IDEAL: FIFO, nothing lost. CHANNELS: FIFO with losses and duplications. CHAOS: any order."""

    IDEAL = "ideal"
    CHANNELS = "channels"
    CHAOS = "chaos"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Limits of an exploration. `submissions`: number of each member; states beyond a limit are cut off."""

    submissions: tuple[int, ...]
    network: Network = Network.IDEAL
    losses: int = 0
    """Most losses on one path; the next two fields also count on one path."""
    duplications: int = 0
    early_timers: int = 0
    states_max: int = 1_000_000
    depth_max: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A failure at the end of a path, in a sentence, and the steps of the path."""

    kind: str
    sentence: str
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """Result of an exploration. `cut_off`: the limit that ended it early; empty when it is complete."""

    states: int
    steps: int
    ends: int
    """Different states without a next step."""
    local_states: int
    """Different local states of members."""
    depth: int
    cut_off: str
    unjudged: tuple[Property, ...]
    """Promises on which no end had anything to judge."""
    violation: Violation | None


def explore(build: Build, *, scope: Scope, promises: Sequence[Property]) -> Exploration:
    """Explore until the first violation. `build` makes a member's core, as in its first incarnation."""
    return _Explorer(build, scope, promises).run()


def over_ideal_channels(core: Core, membership: Membership) -> Core:
    """The core of a group's first view over ideal channels; if there is none, the core over the network."""
    upper = core.core_alone() if isinstance(core, GroupCore) else None
    return OverIdealChannels(membership, upper) if upper is not None else over_the_network(core)


def over_the_network(core: Core) -> Core:
    """The core without the group layer, which sends heartbeats for ever, if the core has a transport of its own."""
    alone = core.transport_alone() if isinstance(core, GroupCore) else None
    return core if alone is None else alone


Channels = tuple[tuple[int, ...], ...]
"""Numbers of the messages in transit; those from member s to member t of n are at s * n + t."""


class _State:
    """A state, and the step that led to it. `events`: the applications' events in their order across members, if a
    promised property depends on it; without submissions, of which a property compares only those of one member."""

    __slots__ = ("before", "budgets", "channels", "depth", "events", "given", "local_states", "parent", "turn")

    def __init__(
        self,
        local_states: tuple[LocalState, ...],
        channels: Channels,
        budgets: tuple[int, int, int],
        events: tuple[tuple[int, int, int], ...],
        parent: _State | None = None,
        given: str = "",
        turn: Turn | None = None,
    ) -> None:
        self.local_states = local_states
        self.channels = channels
        self.budgets = budgets
        self.events = events
        self.parent = parent
        self.given = given
        self.turn = turn
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.before: list[_State] = []
        """The states from which a step leads to this one."""

    def way(self) -> list[_State]:
        """The states from the first to this one."""
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
        # No other property reads reports of messages: for the others they would only multiply the states.
        self._local_states = LocalStates(build, scope.submissions, reports_messages=Property.GRANT_ORDER in promises)
        self._seen: dict[object, _State] = {}
        self._exits: list[_State] = []
        """Ends, and states beyond which a limit has cut the search off."""
        self._judged: set[Property] = set()
        self._steps = self._ends = self._depth = 0
        self._cut_off = ""

    def run(self) -> Exploration:
        waiting = [self._first()]
        violation = None
        while waiting and violation is None:
            violation = self._visit(waiting.pop(), waiting)
        violation = violation or self._endless()
        return Exploration(
            states=len(self._seen),
            steps=self._steps,
            ends=self._ends,
            local_states=len(self._local_states),
            depth=self._depth,
            cut_off=self._cut_off,
            unjudged=tuple(kind for kind in self._promises if kind not in self._judged),
            violation=violation,
        )

    def _visit(self, state: _State, waiting: list[_State]) -> Violation | None:
        self._depth = max(self._depth, state.depth)
        if state.depth >= self._scope.depth_max:
            self._cut_off = f"paths of more than {self._scope.depth_max} steps"
            self._exits.append(state)
            return None
        taken = self._steps
        try:
            for following in self._following(state):
                self._steps += 1
                self._note(following, state, waiting)
        except BrokenCoreError as error:
            return Violation(kind="exception", sentence=str(error), path=(*_path(state), "the next step"))
        if self._steps > taken:
            return None
        self._ends += 1
        self._exits.append(state)
        return self._judge(state)

    def _note(self, state: _State, before: _State, waiting: list[_State]) -> None:
        """Queue a state, unless it was seen before."""
        mark = self._mark(state)
        if mark not in self._seen:
            if len(self._seen) >= self._scope.states_max:
                self._cut_off = f"more than {self._scope.states_max} states"
                self._exits.append(before)
                return
            self._seen[mark] = state
            waiting.append(state)
        self._seen[mark].before.append(before)

    def _mark(self, state: _State) -> object:
        """Identity of the state without its path."""
        channels = state.channels
        if self._scope.network is Network.CHAOS:
            channels = tuple(tuple(sorted(channel)) for channel in channels)
        return tuple(local.number for local in state.local_states), channels, state.budgets, state.events

    # Steps.

    def _first(self) -> _State:
        turns = self._local_states.first
        state = _State(
            local_states=tuple(turn.state for turn in turns),
            channels=((),) * self._count**2,
            budgets=(self._scope.losses, self._scope.duplications, self._scope.early_timers),
            events=(),
        )
        for turn in turns:
            state.channels = self._with_sent(state.channels, turn)
        return state

    def _following(self, state: _State) -> Iterator[_State]:
        for local in state.local_states:
            if local.queue and local.can_submit:
                yield self._step(state, local, SUBMIT, f"{local.member} submits", state.channels, state.budgets)
        for at, channel in enumerate(state.channels):
            for position in range(len(channel) if self._scope.network is Network.CHAOS else min(1, len(channel))):
                yield from self._fates(state, at, position)
        yield from self._timers(state)

    def _fates(self, state: _State, at: int, position: int) -> Iterator[_State]:
        """States after each step of one message in transit."""
        source, target = divmod(at, self._count)
        channel = state.channels[at]
        number = channel[position]
        left = _put(state.channels, at, (*channel[:position], *channel[position + 1 :]))
        what = f"{_named(self._local_states.messages[number])} from {source} to {target}"
        local = state.local_states[target]
        losses, duplications, early = state.budgets
        yield self._step(state, local, (source, number), f"{what} arrives", left, state.budgets)
        if losses:
            yield _State(
                state.local_states, left, (losses - 1, duplications, early), state.events, state, f"{what} is lost"
            )
        if duplications:
            budgets = (losses, duplications - 1, early)
            yield self._step(state, local, (source, number), f"{what} arrives and will again", state.channels, budgets)

    def _timers(self, state: _State) -> Iterator[_State]:
        armed = [local for local in state.local_states if local.timers]
        first_ns = min((local.timers[0][0] for local in armed), default=0)
        losses, duplications, early = state.budgets
        is_quiet = not any(state.channels)
        for local in armed:
            at_ns, _, timer = local.timers[0]
            is_early = not is_quiet or at_ns > first_ns
            if is_early and not early:
                continue
            budgets = (losses, duplications, early - is_early)
            yield self._step(state, local, TIMER, f"{local.member}'s timer {timer.name} fires", state.channels, budgets)

    def _step(
        self,
        state: _State,
        local: LocalState,
        given: Given,
        what: str,
        channels: Channels,
        budgets: tuple[int, int, int],
    ) -> _State:
        try:
            turn = self._local_states.turn(local, given)
        except BrokenCoreError as error:
            raise BrokenCoreError(f"{what}: {error}") from error
        member = local.member
        local_states = (*state.local_states[:member], turn.state, *state.local_states[member + 1 :])
        events = state.events
        if self._order_matters:
            timed = (row for row in turn.rows if is_observable(row) and row.event != Event.SUBMIT)
            events += tuple((member, row.event, row.detail) for row in timed if row.detail not in OF_MESSAGES)
        return _State(local_states, self._with_sent(channels, turn), budgets, events, state, what, turn)

    def _with_sent(self, channels: Channels, turn: Turn) -> Channels:
        if not turn.sent:
            return channels
        found = list(channels)
        for target, number in turn.sent:
            at = turn.state.member * self._count + target
            found[at] = (*found[at], number)
        return tuple(found)

    # Ends.

    def _judge(self, state: _State) -> Violation | None:
        findings = check_incarnations(self._incarnations(state), members=range(self._count), kinds=self._promises)
        self._judged |= {kind for kind, finding in findings.items() if finding.verdict is not Verdict.UNKNOWN}
        for kind, finding in findings.items():
            if finding.verdict is Verdict.FAIL:
                return Violation(kind=kind.value, sentence=finding.sentence({}), path=_path(state))
        for local in state.local_states:
            if not local.is_idle or local.queue:
                sentence = f"nothing is left to happen, and member {local.member} is not idle"
                return Violation(kind="rest", sentence=sentence, path=_path(state))
        return None

    def _endless(self) -> Violation | None:
        """The path to a state from which no end can be reached, and on until a state returns: each way from such a
        state stays among such states, which are finitely many."""
        good = set(self._exits)
        waiting = [*good]
        while waiting:
            new = set(waiting.pop().before) - good
            good |= new
            waiting += new
        state = next((state for state in self._seen.values() if state not in good), None)
        if state is None:
            return None
        path = [*_path(state)]
        met: dict[_State, int] = {}
        while state not in met:
            met[state] = len(path)
            following = next(self._following(state))
            path.append(following.given)
            state = self._seen[self._mark(following)]
        steps = len(path) - met[state]
        sentence = f"the last {steps} steps can repeat for ever, and from there no end can be reached"
        return Violation(kind="rest", sentence=sentence, path=tuple(path))

    def _incarnations(self, state: _State) -> dict[Incarnation, list[Raw]]:
        """Records of the members; their time is the number of the step."""
        incarnations = {turn.state.member: [_record(row, 0) for row in turn.rows] for turn in self._local_states.first}
        for step in state.way():
            if step.turn is not None:
                incarnations[step.turn.state.member] += [_record(row, step.depth) for row in step.turn.rows]
        for local in state.local_states:
            is_drained = local.is_idle and not local.queue
            incarnations[local.member].append(_record(Row(Event.STOP, int(is_drained)), state.depth + 1))
        return {Incarnation(member, FIRST_INCARNATION): records for member, records in incarnations.items()}


_PER_MEMBER = frozenset(
    (
        Property.VALIDITY,
        Property.AGREEMENT,
        Property.UNIFORM_AGREEMENT,
        Property.INTEGRITY,
        Property.FIFO,
        Property.CAUSAL,
        Property.TOTAL_ORDER,
        *VIEW_PROPERTIES,
    )
)
"""Properties that depend on each member's own sequence alone, not on the interleaving. (A delivery before its
submission would need a core that guesses the message.)"""


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
    """A core over ideal channels in place of streams: its messages travel inside a message of this class, and a
    multicast returns to its sender at once, as over `reliable`. All effects of one call come before those of the next.
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
