"""The end of one view as one consensus among its members: Paxos for a single value (Lamport 1998).

The quorums are those of `View.is_quorum`; all members of the view are acceptors, including those that a value leaves
out. This class knows no time, no streams and no messages on the wire. docs/protocols/group.md has the argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from node.errors import DropReason, RemoteError, check
from node.group.codec import MAX_ROUND, Promise, Proposal, Value, ballot_of, rank_of, round_of
from node.group.view import Incarnation, View
from node.trace import ViewReason

FAR = 2**16  # rounds: no honest member's ballot is further ahead than this
KEPT = 4  # proposals, and sets of votes, of the highest ballots that are kept until one is decided


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """R2: the constraints on a coordinator's free choice of a value.

    `excused`: members that need not promise: silent for their limit, or replaced by a later incarnation. `leaving`:
    members to leave out though they promise: they ask for it, or are replaced. `victims`: members of bad pairs, to be
    left out, too.
    """

    excused: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()
    victims: frozenset[int] = frozenset()
    joiners: tuple[Incarnation, ...] = ()


def cut_of(told: Iterable[Mapping[int, int]], members: Iterable[int]) -> dict[int, int]:
    """The greatest reported position of each stream."""
    known = list(told)
    return {origin: max(positions.get(origin, 0) for positions in known) for origin in members}


class Change:
    """State of the consensus at one member. `promised` and the ballot of `accepted` only grow; `decided` is set
    once."""

    def __init__(self, view: View, me: int) -> None:
        self._view = view
        self._me = me
        self.promised = 0  # the highest ballot that this member has promised; 0: it is not frozen
        self.seen = 0  # the highest ballot that this member has heard of
        self.accepted: tuple[int, Value] | None = None
        self.decided: Value | None = None
        self.led = 0  # the ballot that this member coordinates; 0: none
        self.promises: dict[int, Promise] = {}  # for the ballot `led`, by member
        self.proposals: dict[int, Proposal] = {}
        self._votes: dict[int, set[int]] = {}

    @property
    def proposal(self) -> Proposal | None:
        """The proposal of the ballot promised last, the only one that this member may accept."""
        return self.proposals.get(self.promised)

    @property
    def has_accepted(self) -> bool:
        """Whether this member has accepted under the ballot promised last."""
        return self.accepted is not None and self.accepted[0] == self.promised

    # The coordinator's part.

    def lead(self) -> int:
        """Begin a ballot above all those heard of; the caller promises it like any other ballot."""
        self.led = ballot_of(min(MAX_ROUND, round_of(max(self.seen, self.promised)) + 1), self._view.rank(self._me))
        self.promises.clear()
        return self.led

    @property
    def has_chosen(self) -> bool:
        return self.led in self.proposals

    def choose(self, constraints: Constraints) -> Proposal | None:
        """R2: the proposal of `led`; None while a promise is awaited, the promisers are no quorum, or none of them
        shows the group's state. Its value is the one accepted under the highest ballot, even if that leaves this member
        out; else a free one."""
        view, promises = self._view, self.promises
        waits = any(member not in promises and member not in constraints.excused for member in view.members)
        if waits or not view.is_quorum(promises):
            return None
        accepted = [promise.accepted for promise in promises.values() if promise.accepted is not None]
        if not accepted and not any(promise.is_stateful for promise in promises.values()):
            return None  # a promise is false: any two quorums intersect, and the members with the group's state are one
        value = max(accepted, key=lambda one: one[0])[1] if accepted else self._free_value(constraints)
        holders = {origin: self._holder(origin, position) for origin, position in value.cut.items()}
        return Proposal(self.led, value, holders)

    def _free_value(self, constraints: Constraints) -> Value:
        promises = self.promises
        promisers = [one for one in self._view.incarnations if one.member in promises]
        has_state = [one for one in promisers if promises[one.member].is_stateful]
        # A member that wants to leave, or should, stays if otherwise no member with the group's state would be left.
        unwanted = constraints.leaving | constraints.victims
        if all(one.member in unwanted for one in has_state):
            unwanted -= {has_state[0].member}
        staying = [one for one in promisers if one.member not in unwanted]
        stateful = frozenset(one.member for one in has_state if one in staying)
        if not self._view_of(staying, [], constraints).is_quorum(stateful):
            # Otherwise a quorum of members without the group's state could form the next view.
            staying = [one for one in staying if one.member in stateful]
        stay = {one.member for one in staying}
        joiners = sorted(
            one
            for one in constraints.joiners
            if one.member not in stay
            # A member on probation is admitted only when all promisers hear it.
            and (one.member not in self._view.probation or all(one in told.heard for told in promises.values()))
        )
        while not self._view_of(staying, joiners, constraints).is_quorum(stateful):
            joiners.pop()
        return Value(
            next=self._view_of(staying, joiners, constraints),
            reason=self._reason(constraints, staying, joiners),
            stateful=stateful,
            cut=cut_of((told.positions for told in promises.values()), self._view.members),
        )

    def _view_of(self, staying: list[Incarnation], joiners: list[Incarnation], constraints: Constraints) -> View:
        view = self._view
        return view.followed_by(view.number + 1, (*staying, *joiners), view.probation | constraints.victims)

    def _reason(self, constraints: Constraints, staying: list[Incarnation], joiners: list[Incarnation]) -> ViewReason:
        if constraints.victims:
            return ViewReason.BAD_PAIR
        if any(one.member in self._view.members for one in joiners):
            return ViewReason.REPLACED
        if joiners:
            return ViewReason.JOIN
        if constraints.leaving & set(self._view.members):
            return ViewReason.LEAVE
        return ViewReason.SUSPICION if len(staying) < len(self._view.members) else ViewReason.MERGE

    def _holder(self, origin: int, position: int) -> int:
        """A promiser that has the stream of `origin` up to `position`: the origin itself if it is one of them."""
        has = [member for member, promise in sorted(self.promises.items()) if promise.accepted is not None]
        has += [m for m, promise in sorted(self.promises.items()) if promise.positions.get(origin, 0) >= position]
        return origin if origin in has else has[0] if has else self._me

    # The acceptor's part.

    def check_ballot(self, ballot: int, source: int) -> None:
        """RemoteError: no honest member of this view leads such a ballot."""
        check(rank_of(ballot) == self._view.rank(source), f"a ballot of rank {rank_of(ballot)} from member {source}")
        self.check_round(ballot)

    def check_round(self, ballot: int) -> None:
        """RemoteError: no honest member of this view leads such a ballot, or has reached such a round."""
        if rank_of(ballot) >= len(self._view.members):  # not `check`: every heartbeat comes here
            raise RemoteError(DropReason.MALFORMED, f"a ballot of rank {rank_of(ballot)}")
        if round_of(ballot) > round_of(max(self.seen, self.promised)) + FAR:
            raise RemoteError(DropReason.OUT_OF_WINDOW, f"a ballot of round {round_of(ballot)}")

    def promise(self, ballot: int) -> bool:
        """Promise this ballot (again) if no higher one is promised. Returns whether it did."""
        self.see(ballot)
        if ballot < self.promised:
            return False
        self.promised = ballot
        return True

    def see(self, ballot: int) -> None:
        """Note a ballot that this member has heard of; a higher one ends the ballot that this member leads."""
        self.seen = max(self.seen, ballot)

    def propose(self, proposal: Proposal) -> bool:
        """Take in an ACCEPT. Returns whether its ballot is promised, so that its value may be accepted."""
        if not self.promise(proposal.ballot):
            return False
        self.proposals[proposal.ballot] = proposal
        for ballot in sorted(self.proposals)[:-KEPT]:
            del self.proposals[ballot]
        return True

    def count(self, member: int, ballot: int) -> Value | None:
        """`member` has accepted the proposal of `ballot`. Returns the value if a quorum has, and the value is known."""
        self.see(ballot)
        votes = self._votes.setdefault(ballot, set())
        votes.add(member)
        for old in sorted(self._votes)[:-KEPT]:
            del self._votes[old]
        proposal = self.proposals.get(ballot)
        return proposal.value if proposal is not None and self._view.is_quorum(votes) else None

    def voters(self, ballot: int) -> frozenset[int]:
        """Members that have accepted the proposal of this ballot, and therefore have everything of its cut."""
        return frozenset(self._votes.get(ballot, ()))

    def decide(self, value: Value) -> None:
        assert self.decided is None or self.decided == value, "two values were decided in one view"
        self.decided = value
