"""Who takes part, and how a later life finds the point from which it has everything. Cores over `reliable` share it.

The setting. Each life (member, incarnation) has one stream of messages that all survivors receive equally and in its
order; the news of its end (RELIABLE_ENDED) stands at the same place of it everywhere. A core gives what it sends
numbers of its own: timestamps, rounds, numbers of distributions. A later life comes into the midst of that. It must not
say what stands before something that others have delivered, and from some number on it must miss nothing.

    joiner             everybody who takes part
           <---------- (layer below) takes part in the other's stream
    JOIN   ----------> from now on awaits the joiner at every number later than its own, at the latest
           <---------- WELCOME: the life that it is for, its number, and the lives whose end it has not heard of

Let `start` be the greatest number of all answers. What the joiner sends is later than `start`; so nobody has delivered
beyond it without the joiner. What is later than `start` was sent after its sender's answer; so the joiner has all of
it. (The JOIN must be answered, not the news of the layer below: where the joiner's part of a stream begins is settled
only when it is a member. Where no number counts but only who lives, the news does: `answers_news`.)

Only streams that end meanwhile could hide something: their senders never answer. Therefore an answer lists the lives
that its sender has not heard the end of. The joiner waits while one is listed in whose stream it has no part; and at
every end, the answers to joiners that have not spoken yet are sent anew. Who does not list a life has received all of
it, and his number is not before any of that.

Which life. A unicast is for whoever is the member when the layer below takes it. Flow control may hold an answer back
until the life that asked has ended and the next one of its member has joined. To that one it would say a number from
before it was awaited, and it would begin too early. So an answer names the life that it is for, and counts for no
other.

Asking again. Who receives the JOIN, loses his answer on the way and crashes is missed by nobody in a group at rest: his
end is never agreed, and the joiner would wait for ever. So the joiner repeats its JOIN after `ASK_AGAIN_NS`, then more
and more rarely (`asks`): whoever does not acknowledge that is missed. Everybody answers it anew, which does no harm: a
later answer says no less than an earlier one. Where the news is answered, the joiner asks each of `lives` in the same
way, the first time when it has waited that long.

Who joins after us has us among those that it awaits from its beginning on, so it need not answer. Two that join at the
same time answer each other, also while joining.

What the core does. It calls `joined` and `ended` with the news; when `joined` says so multicasts a JOIN, and again when
`asks` says; at a JOIN calls `asked` and sends a WELCOME with `words`; at a WELCOME calls `answered`; at every end sends
a WELCOME to each of `waiting`; at anything else that a life says calls `spoke`. After each of these it asks
`has_everything`, and if so calls `begin`, forgets what is not later than `start`, stops its timer, and speaks.

Invariants: a life in `waiting` is in `lives`; `start` never falls; after `begin` nothing is missing, for ever.
"""

from __future__ import annotations

from node.core import Membership
from node.errors import DropReason, RemoteError
from node.protocols.words import pack, unpack

Life = tuple[int, int]
"""(member, incarnation)."""

ASK_AGAIN_NS = 1_000_000_000
"""How long a joiner waits before it asks for the second time; then twice as long each time, but not for ever."""
MOST_DOUBLINGS = 20


class Joining:
    """The part of one core. `answers_news`: everybody answers the news that we take part, instead of a JOIN."""

    __slots__ = (
        "_answers_news",
        "_asks",
        "_is_joining",
        "_is_member",
        "_lists",
        "_lives",
        "_members",
        "_missing",
        "_start",
        "_us",
        "_waiting",
    )

    def __init__(self, membership: Membership, *, answers_news: bool = False) -> None:
        is_founder = membership.incarnation == 1 or not membership.peers
        self._members = membership.members
        self._us: Life = (membership.member, membership.incarnation)
        self._answers_news = answers_news
        self._asks = 0
        """How often we have asked."""
        self._is_member = is_founder
        self._is_joining = not is_founder
        self._lives: set[Life] = {(peer, 1) for peer in membership.peers} if is_founder else set()
        self._waiting: dict[Life, None] = {}
        self._missing: set[Life] = set()
        """While joining: those whose first answer we miss ..."""
        self._lists: dict[Life, frozenset[Life]] = {}
        """... and whom the others list, as their last answer says."""
        self._start = 0

    @property
    def lives(self) -> tuple[Life, ...]:
        """The others that take part: joined, and their end has not been heard of. Ascending."""
        return tuple(sorted(self._lives))

    @property
    def is_member(self) -> bool:
        """Whether the layer below has said that we take part."""
        return self._is_member

    @property
    def is_joining(self) -> bool:
        """Until `begin`; never in a first life."""
        return self._is_joining

    @property
    def start(self) -> int:
        """The greatest number of all answers so far: what is later, we have. 0 in a first life."""
        return self._start

    @property
    def waiting(self) -> tuple[Life, ...]:
        """Joiners that have been answered and have not spoken yet, in the order of their asking."""
        return tuple(self._waiting)

    @property
    def has_everything(self) -> bool:
        """Whether a joiner can `begin`."""
        if not self._is_joining or not self._is_member or self._missing:
            return False
        ours = {*self._lives, self._us}
        return all(listed <= ours for listed in self._lists.values())

    def __contains__(self, life: object) -> bool:
        return life in self._lives

    def joined(self, life: Life) -> bool:
        """News that `life` takes part in our stream and we in its; of us, that we are a member now.

        Whether the news is of us and it is time to multicast a JOIN.
        """
        if life == self._us:
            is_new = not self._is_member
            self._is_member = True
            return is_new
        self._lives.add(life)
        if self._is_joining and (not self._is_member or self._answers_news):
            self._missing.add(life)
        return False

    def ended(self, life: Life) -> None:
        """News that `life` has ended and that all of it has come. Each of `waiting` needs a new answer now."""
        self._lives.discard(life)
        self._waiting.pop(life, None)
        self._missing.discard(life)
        self._lists.pop(life, None)

    def asks(self, now_ns: int) -> int:
        """We ask now (or begin to wait for answers to the news). When to ask again, if we are still joining then."""
        wait_ns = ASK_AGAIN_NS << min(self._asks, MOST_DOUBLINGS)
        self._asks += 1
        return now_ns + wait_ns

    def asked(self, joiner: Life) -> None:
        """It wants to be answered (a JOIN; with `answers_news`, the news of it)."""
        self._waiting[joiner] = None

    def spoke(self, life: Life) -> None:
        """It has said something of its own: it has begun and needs no more answers."""
        if self._waiting:
            self._waiting.pop(life, None)

    def words(self, joiner: Life) -> tuple[int, ...]:
        """Of a WELCOME to it: itself, then the lives whose end we have not heard of; entries with number 0."""
        return (pack(*joiner, 0), *(pack(*life, 0) for life in self.lives if life != joiner))

    def answered(self, life: Life, number: int, words: tuple[int, ...]) -> None:
        """A WELCOME of `life`. One that comes late, or of a life that has ended, changes nothing.

        RemoteError, and nothing has changed: MALFORMED when its words are not a life of ours and then lives of members,
        UNEXPECTED when it is for another life of ours.
        """
        entries = tuple(map(unpack, words))
        if not entries or any(entry.number or entry.member not in self._members for entry in entries):
            raise RemoteError(DropReason.MALFORMED, "a welcome that lists something else than lives of members")
        member, incarnation, _ = entries[0]
        if member != self._us[0] or incarnation == 0:
            raise RemoteError(
                DropReason.MALFORMED, f"a welcome to us that is for life {incarnation} of member {member}"
            )
        if incarnation != self._us[1]:
            raise RemoteError(DropReason.UNEXPECTED, f"a welcome for our life {incarnation}, which is not this one")
        if self._is_joining and life in self._lives:
            self._start = max(self._start, number)
            self._missing.discard(life)
            self._lists[life] = frozenset((entry.member, entry.incarnation) for entry in entries[1:])

    def begin(self) -> int:
        """We have everything later than the number returned: joining is over."""
        assert self.has_everything, "a joiner begins once, when nothing is missing"
        self._is_joining = False
        self._lists.clear()
        return self._start
