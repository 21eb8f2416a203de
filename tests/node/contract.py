"""The contract of the reliable layer without the layer: any core above it, in every order that the contract allows.

The layer as a whole (tests.node.cluster, the campaigns) seldom meets the orders in which news, streams and unicasts can
come. Here each of them is one step, and chance picks the next step among all that the contract allows:

- a life's multicasts, its unicasts to one member and the news of its end reach each member in the order in which it
  sent them; between two lives there is no order;
- what a core sends waits (flow control) and leaves later, in order; a unicast goes to the life that lives then;
- who is to end may go on for a while. Each other learns of that on his own, takes no more from it, and when all have
  learned they get the same of its stream, and the news of its end after that;
- nobody delivers a multicast that was sent after its sender learned of an end that he has not learned of yet;
- who joins is registered by one member after the other, hears of the ends that they have learned, and takes part in
  each stream from its registration on; it is a member when all who live have registered it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send
from node.errors import DropReason, RemoteError
from node.wire import Kind, Message

Life = tuple[int, int]
Name = tuple[int, int, int]
"""(member, incarnation, number among the submissions of that life)."""
Make = Callable[[Membership], Core]
Step = partial[None]
PACES = (1.0, 1.0, 0.2, 0.02)
FAULT_RATIO = 0.04
"""Of the steps that chance picks, as long as there may be faults."""


@dataclass(kw_only=True)
class Being:
    """One life, what it has sent, and what is on its way to it."""

    life: Life
    core: Core
    is_running: bool = True
    is_doomed: bool = False
    is_member: bool = True
    leaving: deque[Send | Multicast] = field(default_factory=deque)
    """What the core has sent and the layer has not taken yet."""
    stream: list[tuple[Message, frozenset[Life]]] = field(default_factory=list)
    """Its multicasts, each with the ends that it had learned of."""
    registered: set[Life] = field(default_factory=set)
    """Later lives that take part in its stream from their registration on."""
    parts: dict[Life, int] = field(default_factory=dict)
    """In whose streams it takes part: how many of their multicasts it has passed."""
    inbox: dict[Life, deque[tuple[int, Message]]] = field(default_factory=dict)
    """Unicasts: how many multicasts of their sender come before, and the message."""
    met: dict[int, int] = field(default_factory=dict)
    """Per member: its latest life that it knows."""
    learned: set[Life] = field(default_factory=set)
    """Of whose end it knows in the layer below; the news may come much later."""
    submitted: int = 0
    delivered: list[Name] = field(default_factory=list)
    refusals: list[DropReason] = field(default_factory=list)
    causes: dict[int, int] = field(default_factory=dict)
    """Per submission: how many messages it had delivered before."""

    @property
    def is_up(self) -> bool:
        return self.is_running and not self.is_doomed


class World:
    """See the module's text. The last member never falls; `indispensable` ones are up when it comes to rest."""

    def __init__(self, seed: int, make: Make, *, indispensable: frozenset[int] = frozenset()) -> None:
        self.seed = seed
        self.rng = Random(f"{seed}/contract")
        self._make = make
        self._indispensable = indispensable
        self.members = tuple(range(self.rng.randint(2, 5)))
        self.beings: dict[Life, Being] = {}
        self._paces: dict[tuple[str, int], float] = {}
        """By the name of a step and the member that does it: how often, next to others."""
        self.final: dict[Life, int] = {}
        """Of ended lives: how many of their multicasts everybody gets."""
        for member in self.members:
            others = [other for other in self.members if other != member]
            self._begin((member, 1), is_member=True, parts={(other, 1): 0 for other in others})

    def run(self, *, steps: int = 300, faults: int = 8) -> None:
        """Chance, with faults; then without, until nothing is left to happen."""
        for _ in range(steps):
            harm = self._faults() if faults and self.rng.random() < FAULT_RATIO else []
            allowed = harm or self._submissions() + self._moves()
            if allowed:
                self._choose(allowed)()
                faults -= bool(harm)
        for member in sorted(self._indispensable):
            if not self._current(member).is_up:
                self._restart(member)
        for _ in range(20_000):
            moves = self._moves()
            if not moves:
                return
            self._choose(moves)()
        raise AssertionError(f"it does not come to rest (seed {self.seed})")

    def survivors(self) -> list[Being]:
        return [being for being in self.beings.values() if being.is_up]

    # What can happen.

    def _submissions(self) -> list[Step]:
        """A stack takes none while something of the upper core waits."""
        ready = [being for being in self._running() if being.is_member and not being.leaving and being.core.can_submit]
        return [partial(self._submit, being) for being in ready]

    def _moves(self) -> list[Step]:
        steps: list[Step] = []
        everybody = list(self.beings.values())
        for being in self._running():
            if being.is_member:
                steps += [partial(self._leave, being)] * bool(being.leaving)
                steps += [partial(self._take, being, source) for source in self._sources(being)]
            elif all(self._is_resolved(being, peer) for peer in self.members if peer != being.life[0]):
                steps.append(partial(self._enter, being))
            others = [other for other in everybody if other is not being and other.life not in being.learned]
            steps += [partial(self._learn, being, other.life) for other in others if other.is_doomed]
            steps += [partial(self._register, being, other) for other in others if self._may_register(being, other)]
        return steps + [partial(self._finish, being) for being in everybody if self._may_finish(being)]

    def _faults(self) -> list[Step]:
        """The crash of one, or the doom of one that goes on for a while; or a new life."""
        steps: list[Step] = []
        for member in self.members[:-1]:
            being = self._current(member)
            if being.is_up:
                steps += [partial(self._doom, being, crashes=crashes) for crashes in (True, False)]
            else:
                steps.append(partial(self._restart, member))
        return steps

    def _choose(self, steps: list[Step]) -> Step:
        """In each world some of them do some things much more rarely than others: else they all keep pace, and few of
        the orders that are possible come about.
        """
        return self.rng.choices(steps, [self._pace(step) for step in steps])[0]

    def _pace(self, step: Step) -> float:
        being = step.args[0]
        key = (step.func.__name__, being.life[0] if isinstance(being, Being) else being)
        if key not in self._paces:
            self._paces[key] = self.rng.choice(PACES)
        return self._paces[key]

    # The steps.

    def _submit(self, being: Being) -> None:
        being.submitted += 1
        being.causes[being.submitted] = len(being.delivered)
        payload = b"%d %d %d" % (*being.life, being.submitted)
        self._carry_out(being, being.core.on_submit(Submission(payload=payload), 0))

    def _leave(self, being: Being) -> None:
        effect = being.leaving.popleft()
        if isinstance(effect, Multicast):
            being.stream.append((effect.message, frozenset(being.learned)))
            self._hear(being, effect.message)
            return
        target = self.beings[effect.target, being.met[effect.target]]
        if target.life not in being.learned and being.life not in target.learned:
            target.inbox.setdefault(being.life, deque()).append((len(being.stream), effect.message))

    def _sources(self, being: Being) -> list[Life]:
        """Whose next word it can take."""
        found = []
        for source, passed in being.parts.items():
            sender = self.beings[source]
            if not being.is_member:
                continue
            if source in self.final:
                found.append(source)
            elif source not in being.learned:
                inbox = being.inbox.get(source)
                is_unicast = bool(inbox) and inbox[0][0] <= passed  # type: ignore[index]
                is_known = passed < len(sender.stream) and sender.stream[passed][1] <= being.learned
                found += [source] * (is_unicast or is_known)
        return found

    def _take(self, being: Being, source: Life) -> None:
        passed = being.parts[source]
        inbox = being.inbox.get(source)
        if source in self.final and passed >= self.final[source]:
            del being.parts[source]
            self._hear(being, _news(Kind.RELIABLE_ENDED, source))
        elif inbox and inbox[0][0] <= passed and source not in self.final:
            self._hear(being, inbox.popleft()[1])
        else:
            being.parts[source] = passed + 1
            self._hear(being, self.beings[source].stream[passed][0])

    def _doom(self, being: Being, *, crashes: bool) -> None:
        being.is_doomed = True
        being.is_running = not crashes

    def _learn(self, being: Being, life: Life) -> None:
        """This life is over, and all before it are."""
        for over in ((life[0], incarnation) for incarnation in range(1, life[1] + 1)):
            being.learned.add(over)
            being.inbox.pop(over, None)
            if not being.is_member:
                being.parts.pop(over, None)

    def _may_finish(self, being: Being) -> bool:
        return (
            being.is_doomed
            and being.life not in self.final
            and all(
                being.life in one.learned for one in self._running() if one is not being and being.life in one.parts
            )
        )

    def _finish(self, being: Being) -> None:
        """Everybody gets what anybody has, and perhaps more of what was sent."""
        being.is_running = False
        least = max((one.parts[being.life] for one in self._running() if being.life in one.parts), default=0)
        self.final[being.life] = self.rng.randint(least, max(least, len(being.stream)))

    def _restart(self, member: int) -> None:
        old = self._current(member)
        old.is_doomed, old.is_running = True, False
        self._begin((member, old.life[1] + 1), is_member=False, parts={})

    def _may_register(self, being: Being, joiner: Being) -> bool:
        if joiner.is_member or not joiner.is_running or joiner.life[0] == being.life[0]:
            return False
        return joiner.life not in being.registered and joiner.life[1] >= being.met[joiner.life[0]]

    def _register(self, being: Being, joiner: Being) -> None:
        """`being` meets it, tells it of all lives and ends that it knows of, and takes part in its stream."""
        self._learn(being, (joiner.life[0], joiner.life[1] - 1))
        being.met[joiner.life[0]] = joiner.life[1]
        being.registered.add(joiner.life)
        for life in sorted(being.learned):
            self._learn(joiner, life)
        for peer, incarnation in (being.life, *being.met.items()):
            if peer != joiner.life[0] and incarnation > joiner.met[peer]:
                joiner.met[peer] = incarnation
                self._learn(joiner, (peer, incarnation - 1))
        if being.life not in joiner.learned:
            joiner.parts[being.life] = len(being.stream)
        if being.is_member and joiner.life not in being.parts:
            being.parts[joiner.life] = 0
            self._hear(being, _news(Kind.RELIABLE_JOINED, joiner.life))

    def _is_resolved(self, joiner: Being, peer: int) -> bool:
        """The latest life that it knows of has registered it, or is over."""
        life = (peer, joiner.met[peer])
        return life in joiner.learned or life in joiner.parts

    def _enter(self, joiner: Being) -> None:
        joiner.is_member = True
        for peer in self.members:
            if peer == joiner.life[0]:
                continue
            if not any(life[0] == peer for life in joiner.parts):
                last = max(life for life in joiner.learned if life[0] == peer)
                self._hear(joiner, _news(Kind.RELIABLE_ENDED, last))
        for life in sorted(joiner.parts):
            self._hear(joiner, _news(Kind.RELIABLE_JOINED, life))
        self._hear(joiner, _news(Kind.RELIABLE_JOINED, joiner.life))

    # The host.

    def _begin(self, life: Life, *, is_member: bool, parts: dict[Life, int]) -> None:
        core = self._make(Membership(member=life[0], members=self.members, incarnation=life[1]))
        being = self.beings[life] = Being(life=life, core=core, is_member=is_member, parts=parts)
        being.met = {member: 1 for member in self.members if member != life[0]}
        self._carry_out(being, core.on_start(0))

    def _hear(self, being: Being, message: Message) -> None:
        try:
            effects = being.core.on_message(message, message.origin, 0)
        except RemoteError as error:
            raise AssertionError(f"{being.life} refused {message}: {error} (seed {self.seed})") from error
        self._carry_out(being, effects)

    def _carry_out(self, being: Being, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send() | Multicast(is_near=False):
                    being.leaving.append(effect)
                case Deliver():
                    member, incarnation, number = map(int, effect.payload.split())
                    being.delivered.append((member, incarnation, number))
                case Report(code=DropReason() as reason):
                    being.refusals.append(reason)
                case Report():
                    pass
                case _:
                    raise AssertionError(f"{effect} needs a clock, and there is none")

    def _running(self) -> list[Being]:
        return [being for being in self.beings.values() if being.is_running]

    def _current(self, member: int) -> Being:
        return self.beings[max(life for life in self.beings if life[0] == member)]


def _news(kind: Kind, life: Life) -> Message:
    return Message(kind=kind, origin=life[0], incarnation=life[1])


def check(world: World) -> None:
    """One order at all who live on, of which joiners have the end; nothing they sent is lost; nobody waits."""
    hint = f"(seed {world.seed})"
    founder = world.beings[world.members[-1], 1]
    order = founder.delivered
    assert len(order) == len(set(order)), f"delivered twice {hint}"
    place = {name: at for at, name in enumerate(order)}
    for being in world.survivors():
        who = f"{being.life} {hint}"
        refused = set(being.refusals) - {DropReason.STALE_INCARNATION}
        assert not refused, f"it refused honest words, {refused}: {who}"
        assert being.is_member, f"it did not join: {who}"
        assert being.core.is_idle and being.core.held == 0, f"it waits: {who}"
        begin = 0 if being.life[1] == 1 else len(order) - len(being.delivered)
        assert being.delivered == order[begin:], f"another order: {who}"
        for number in range(1, being.submitted + 1):
            name = (*being.life, number)
            assert name in place and place[name] >= begin, f"lacks {name}: {who}"
            causes = being.causes[number]
            assert causes == 0 or place[being.delivered[causes - 1]] < place[name], f"{name} before its cause: {who}"
    for life in world.beings:
        numbers = [number for member, incarnation, number in order if (member, incarnation) == life]
        assert numbers == list(range(1, len(numbers) + 1)), f"{life} is not in the order in which it sent {hint}"
