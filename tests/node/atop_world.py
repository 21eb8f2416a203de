"""Random worlds for the order of ATOP: what lives may say and hear by the rules of the reliable layer and of ATOP.

Streams are FIFO; who lives on receives the same of a stream that ends, and its end at the same place; each life hears
the others in an order of its own. Lives publish, adopt, send, fill numbers with dummies, give numbers away, use the
numbers of others or lose them, end alone or together, and later lives join by the rules of `joining.py`. Every life
runs an Order of its own while all that happens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from node.core import Membership
from node.protocols.atop_draw import Draws
from node.protocols.atop_order import Order, Own
from node.protocols.atop_words import FIRST, number_of, stamp_of
from node.protocols.joining import Joining, Life
from node.wire import Kind, Message

Key = tuple[int, int, int]
"""(member, incarnation, which message of that life)."""
Weights = tuple[int, ...]
NEVER = 2**62


@dataclass(kw_only=True)
class Said:
    """One item of a stream, with the weights that it publishes."""

    item: Own
    weights: Weights | None = None


@dataclass(kw_only=True)
class Being:
    """One life, and all that it has heard."""

    life: Life
    order: Order
    joining: Joining
    stream: list[Said] = field(default_factory=list)
    heard: dict[Life, int] = field(default_factory=dict)
    """Of whom it hears: how much."""
    ends: set[Life] = field(default_factory=set)
    """Of whose end it has heard."""
    unasked: set[Life] = field(default_factory=set)
    """Who has not answered our JOIN yet."""
    is_alive: bool = True
    audible: int = NEVER
    """How much of its stream others can hear: it does not know that they will give it up."""
    stamp: int = FIRST
    given: int = 0
    shown: int = 0
    closes: tuple[tuple[int, int], ...] = ()
    sent: int = 0
    delivered: list[Key] = field(default_factory=list)
    began: int = FIRST

    def advance(self) -> None:
        if not self.joining.is_joining:
            self.delivered += map(key_of, self.order.advance())


def key_of(message: Message) -> Key:
    return message.origin, message.incarnation, int.from_bytes(message.payload, "big")


class World:
    def __init__(self, seed: int, *, brokered: bool, draws: Draws) -> None:
        self.rng = rng = Random(f"{seed}/world")
        count = rng.randint(2, 5)
        self.members = tuple(sorted(rng.sample(range(40), count)))
        self.brokered = brokered
        self.draws = draws
        self.beings: dict[Life, Being] = {}
        self.pool: list[tuple[int, int, int]] = []
        """(stamp, donor, number): given away, not used yet."""
        founders = [(member, 1) for member in self.members]
        for life in founders:
            heard = {other: 0 for other in founders if other != life}
            self.beings[life] = self.new_being(life, heard)

    def new_being(self, life: Life, heard: dict[Life, int]) -> Being:
        joining = Joining(Membership(member=life[0], members=self.members, incarnation=life[1]))
        return Being(life=life, order=self.new_order(joining=life[1] > 1), joining=joining, heard=heard)

    def new_order(self, *, joining: bool) -> Order:
        return Order(self.members, brokered=self.brokered, draws=self.draws, joining=joining)

    @property
    def living(self) -> list[Being]:
        return [being for _, being in sorted(self.beings.items()) if being.is_alive]

    @property
    def running(self) -> list[Being]:
        return [being for being in self.living if not being.joining.is_joining]

    def stamps(self) -> dict[Key, int]:
        """Of all messages that all who survive receive, in the end: the stamp."""
        items = [said.item for _, being in sorted(self.beings.items()) for said in being.stream]
        return {key_of(item.message): item.stamp for item in items if item.message is not None}

    def lost_stamps(self) -> set[int]:
        """Under which somebody spoke, and whose weights nobody has."""
        said = [said for being in self.beings.values() for said in being.stream]
        return {one.item.stamp for one in said} - {one.item.stamp for one in said if one.weights} - {FIRST}

    # A whole history.

    def run(self, steps: int) -> None:
        actions = {
            self.hear_some: 12,
            self.send: 10,
            self.fill_own: 3,
            self.publish_some: 2,
            self.rest_and_look: 1,
            self.end_some: 1,
            self.mute: 1,
            self.end_with_a_secret: 1,
            self.join: 2,
        }
        if self.brokered:
            actions |= {self.give_away: 4, self.use: 6, self.fill: 3, self.lose: 1}
        for action in self.rng.choices(list(actions), weights=list(actions.values()), k=steps):
            action()
            if self.rng.random() < 0.5:
                self.rng.choice(self.living).advance()
        self.settle()

    def settle(self) -> None:
        """Everybody hears everything, moves to one last distribution and speaks under it."""
        self.end([being for being in self.living if being.audible != NEVER])
        for _ in self.living:
            self.hear_all()
        assert not any(being.joining.is_joining for being in self.living), "somebody joins for ever"
        self.hear_all()
        last = self.rng.choice(self.living)
        self.publish(last, self.some_weights())
        self.hear_all()
        for being in self.living:
            if being is not last:
                self.say(being, count=1)
        self.hear_all()

    def hear_all(self) -> None:
        for _ in range(2):
            for being in self.living:
                self.answer_some(being)
                while self.hear(being):
                    pass
                being.advance()

    # What a life hears.

    def hear_some(self) -> None:
        being = self.rng.choice(self.living)
        if self.rng.random() < 0.3:
            self.answer_some(being)
        for _ in range(self.rng.choice((1, 1, 2, 5, 20))):
            self.hear(being)
        being.advance()

    def hear(self, being: Being) -> bool:
        """The next of any stream. Whether there was something."""
        lives = self.rng.sample(sorted(being.heard), len(being.heard))
        return any(self.hear_of(being, life) for life in lives)

    def hear_of(self, being: Being, life: Life) -> bool:
        other = self.beings[life]
        at = being.heard[life]
        if at < min(len(other.stream), other.audible):
            being.heard[life] = at + 1
            self.take(being, life, other.stream[at])
            return True
        if other.is_alive or life in being.ends:
            return False
        being.ends.add(life)
        being.order.ended(life)
        being.joining.ended(life)
        for joiner in being.joining.waiting:
            self.answer(being, joiner)
        self.begin_if_welcome(being)
        return True

    def take(self, being: Being, life: Life, said: Said) -> None:
        stamp = said.item.stamp
        if said.weights is not None:
            assert being.order.weights_refusal(life, stamp, said.weights) is None
            being.order.announce(stamp, said.weights)
        assert being.order.refusal(life, said.item) is None, being.order.refusal(life, said.item)
        being.order.take(life, said.item)
        being.joining.spoke(life)
        if said.weights is not None and stamp > being.stamp and not being.joining.is_joining:
            self.switch(being, stamp)

    # What a life says.

    def switch(self, being: Being, stamp: int) -> None:
        if being.given > being.shown:
            being.closes = (*being.closes, (being.stamp, being.given))
        being.stamp, being.given, being.shown = stamp, 0, 0

    def say(
        self,
        being: Being,
        *,
        count: int = 0,
        message: Message | None = None,
        slot: tuple[int, int] | None = None,
        fills: tuple[tuple[int, int, int], ...] = (),
        weights: Weights | None = None,
    ) -> None:
        item = Own(being.stamp, being.given + 1 if count else 0, count, message, slot, fills, being.closes)
        being.closes = ()
        if count:
            being.given += count
            being.shown = being.given
        if weights is not None:
            assert being.order.weights_refusal(being.life, being.stamp, weights) is None
        assert being.order.refusal(being.life, item) is None, being.order.refusal(being.life, item)
        being.order.take(being.life, item)
        being.stream.append(Said(item=item, weights=weights))

    def message_of(self, being: Being) -> Message:
        being.sent += 1
        member, incarnation = being.life
        payload = being.sent.to_bytes(4, "big")
        return Message(kind=Kind.ATOP_DATA, origin=member, incarnation=incarnation, payload=payload)

    def send(self) -> None:
        for being in self.rng.sample(self.running, min(1, len(self.running))):
            for _ in range(self.rng.choice((1, 1, 1, 4))):
                self.say(being, count=1, message=self.message_of(being))

    def fill_own(self) -> None:
        for being in self.rng.sample(self.running, min(1, len(self.running))):
            self.say(being, count=self.rng.choice((1, 1, 3, 8)))

    def publish_some(self) -> None:
        for being in self.rng.sample(self.running, min(1, len(self.running))):
            self.publish(being, self.some_weights())

    def publish(self, being: Being, weights: Weights) -> None:
        highest = max(being.order.highest, being.joining.start)
        stamp = stamp_of(highest + 1, *being.life)
        if being.joining.is_joining:
            being.joining.begin()
            being.began = stamp
            being.order.joined(being.life, after=highest)
            being.order.announce(stamp, weights)
            being.order.start(stamp)
            being.stamp = stamp
            item = Own(stamp)
            being.order.take(being.life, item)
            being.stream.append(Said(item=item, weights=weights))
            return
        self.switch(being, stamp)
        item = Own(stamp, closes=being.closes)
        being.closes = ()
        assert being.order.weights_refusal(being.life, stamp, weights) is None
        being.order.announce(stamp, weights)
        being.order.take(being.life, item)
        being.stream.append(Said(item=item, weights=weights))

    def some_weights(self) -> Weights:
        weights = [self.rng.choice((0, 1, 1, 2, 5)) for _ in self.members]
        if not any(weights):
            weights[self.rng.randrange(len(weights))] = 1
        return tuple(weights)

    # Numbers of others.

    def give_away(self) -> None:
        for being in self.rng.sample(self.running, min(1, len(self.running))):
            for _ in range(self.rng.randint(1, 4)):
                being.given += 1
                if being.audible == NEVER:
                    self.pool.append((being.stamp, being.life[0], being.given))

    def grant(self) -> tuple[Being, int, int] | None:
        """Somebody who sends under the stamp of a number in the pool, and that number."""
        pairs = [(being, entry) for being in self.running for entry in self.pool if entry[0] == being.stamp]
        if not pairs:
            return None
        being, entry = self.rng.choice(pairs)
        self.pool.remove(entry)
        return being, entry[1], entry[2]

    def use(self) -> None:
        granted = self.grant()
        if granted is not None:
            being, donor, number = granted
            self.say(being, count=1, message=self.message_of(being), slot=(donor, number))

    def fill(self) -> None:
        granted = self.grant()
        if granted is not None:
            being, donor, number = granted
            self.say(being, fills=((donor, number, 1),))

    def lose(self) -> None:
        if self.pool:
            self.pool.pop(self.rng.randrange(len(self.pool)))

    # Ends.

    def end_some(self) -> None:
        beings = self.rng.sample(self.living, min(len(self.living) - 2, self.rng.choice((1, 1, 2))))
        if self.rng.random() < 0.3 and self.can_spare(beings):
            self.end(beings)

    def can_spare(self, beings: list[Being]) -> bool:
        """Somebody is left who knows what has been. If all of them die, those who join begin anew, at number 1."""
        return any(other.audible == NEVER for other in self.running if other not in beings)

    def mute(self) -> None:
        being = self.rng.choice(self.living)
        if self.rng.random() < 0.5 and self.can_spare([being]):
            being.audible = min(len(being.stream), being.audible)

    def end(self, beings: list[Being]) -> None:
        for being in beings:
            being.is_alive = False
        for being in beings:
            heard = max(other.heard.get(being.life, 0) for other in self.living)
            most = min(len(being.stream), being.audible)
            del being.stream[self.rng.randint(heard, most) :]

    def end_with_a_secret(self) -> None:
        """A distribution that goes down with its publisher and with the only one that has adopted it, and spoken."""
        if self.rng.random() < 0.6 or sum(being.audible == NEVER for being in self.running) < 4:
            return
        publisher, confidant = self.rng.sample(self.running, 2)
        if publisher.life not in confidant.heard:
            return
        while self.hear_of(confidant, publisher.life):
            pass
        self.publish(publisher, self.some_weights())
        self.hear_of(confidant, publisher.life)
        if confidant.stamp == publisher.stamp:
            self.say(confidant, count=1, message=self.message_of(confidant))
            for being in self.living:
                while being is not publisher and confidant.life in being.heard and self.hear_of(being, confidant.life):
                    pass
        self.end([publisher, confidant])

    # Later lives.

    def join(self) -> None:
        """The layer below makes a later life a member: it hears the living from now on, and multicasts a JOIN."""
        absent = [member for member in self.members if all(being.life[0] != member for being in self.living)]
        if not absent:
            return
        member = self.rng.choice(absent)
        life = (member, 1 + max(life[1] for life in self.beings if life[0] == member))
        being = self.new_being(life, {other.life: min(len(other.stream), other.audible) for other in self.living})
        for other in self.living:
            being.joining.joined(other.life)
            being.order.joined(other.life, after=FIRST)
            being.unasked.add(other.life)
        assert being.joining.joined(life), "time for a JOIN"
        self.beings[life] = being

    def answer_some(self, being: Being) -> None:
        """It hears the JOIN of each that joins, sometimes before the end of an earlier life of that member."""
        for life, joiner in sorted(self.beings.items()):
            if being.life not in joiner.unasked or not joiner.is_alive or being.audible != NEVER:
                continue
            is_early = any(earlier[0] == life[0] and earlier not in being.ends for earlier in being.heard)
            if is_early and self.rng.random() < 0.5:
                continue
            joiner.unasked.discard(being.life)
            being.joining.joined(life)
            being.heard[life] = 0
            being.joining.asked(life)
            being.order.joined(life, after=being.order.highest)
            self.answer(being, life)
            self.begin_if_welcome(being)

    def answer(self, being: Being, life: Life) -> None:
        joiner = self.beings[life]
        if joiner.is_alive and being.audible == NEVER:
            joiner.joining.answered(being.life, being.order.highest, being.joining.words(life))
            self.begin_if_welcome(joiner)

    def begin_if_welcome(self, being: Being) -> None:
        if being.joining.has_everything:
            self.publish(being, self.some_weights())

    def rest_and_look(self) -> None:
        """Who has heard everything and holds something can say who is awaited."""
        being = self.rng.choice(self.living)
        self.answer_some(being)
        while self.hear(being):
            pass
        being.advance()
        if being.order.held and not being.joining.is_joining:
            awaited = {member for member in self.members if being.order.awaits(member)}
            assert awaited, f"life {being.life} stands still and awaits nobody"
            lives = {(life[0], self.beings[life].is_alive) for life in self.beings if life not in being.ends}
            assert all((member, True) in lives or (member, False) in lives for member in awaited)


class Replay:
    """Favours some streams; looks ahead only as far as somebody could: a life is awaited before anything is heard that
    may be said after it joined."""

    def __init__(self, world: World, rng: Random) -> None:
        self.world = world
        self.rng = rng
        self.order = world.new_order(joining=False)
        self.heard = {(member, 1): 0 for member in world.members}
        self.over: set[Life] = set()
        self.unheard = [life for life, being in sorted(world.beings.items()) if being.began != FIRST]
        self.unheard.sort(key=lambda life: world.beings[life].began)
        self.delivered: list[Key] = []

    def run(self) -> list[Key]:
        favour = {life: self.rng.random() ** 3 for life in sorted(self.world.beings)}
        while True:
            left = [life for life in sorted(self.heard) if life not in self.over]
            if not left and not self.unheard:
                break
            if not left:
                self.welcome_before(number_of(self.world.beings[self.unheard[0]].began))
                continue
            life = self.rng.choices(left, weights=[favour[life] + 1e-6 for life in left])[0]
            if not self.hear(life) and all(not self.hear(other) for other in left):
                break
            if self.rng.random() < 0.3:
                self.advance()
        self.advance()
        return self.delivered

    def advance(self) -> None:
        self.delivered += map(key_of, self.order.advance())

    def hear(self, life: Life) -> bool:
        being = self.world.beings[life]
        at = self.heard[life]
        if life in self.over:
            return False
        if at == len(being.stream):
            if being.is_alive:
                return False
            self.order.ended(life)
            self.over.add(life)
            return True
        said = being.stream[at]
        self.welcome_before(number_of(said.item.stamp))
        if life in self.over or self.heard[life] != at:
            return True
        self.heard[life] = at + 1
        if said.weights is not None:
            self.order.announce(said.item.stamp, said.weights)
        assert self.order.refusal(life, said.item) is None, self.order.refusal(life, said.item)
        self.order.take(life, said.item)
        return True

    def welcome_before(self, number: int) -> None:
        """Everybody who begins at `number` or before."""
        while self.unheard:
            life = self.unheard[0]
            begins = number_of(self.world.beings[life].began)
            if begins > number:
                return
            self.unheard.pop(0)
            for earlier in sorted(self.heard):
                while earlier[0] == life[0] and self.rng.random() < 0.9 and self.hear(earlier):
                    pass
            if life not in self.heard:
                self.heard[life] = 0
                self.order.joined(life, after=self.rng.randint(self.order.highest, begins - 1))
