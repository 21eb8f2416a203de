"""The view: which incarnation of which member lives, as far as we know. What is over stays over, so views only grow."""

from __future__ import annotations

from node.core import Membership
from node.protocols.words import Entry, view_digest


class View:
    """Of one member. `incarnations` is the highest known of every peer, `over` that up to which a member's lives have
    ended."""

    __slots__ = ("_known_digests", "_me", "digest", "incarnations", "live", "over")

    def __init__(self, membership: Membership) -> None:
        self._me = membership
        self.incarnations = dict.fromkeys(membership.peers, 1)
        self.over = {membership.member: membership.incarnation - 1} if membership.incarnation > 1 else {}
        self.live = membership.peers
        """Peers whose highest known incarnation is not over, ascending."""
        self.digest = view_digest(self.over)
        self._known_digests = {self.digest}

    def knows(self, digest: int) -> bool:
        """Whether we are, or were, in the view with this digest."""
        return digest in self._known_digests

    def is_stale(self, member: int, incarnation: int) -> bool:
        return incarnation <= self.over.get(member, 0)

    def end(self, member: int, incarnation: int) -> bool:
        """All lives of a peer up to `incarnation` are over. True when the one that we knew was among them and lived."""
        was_live = member in self.live
        self.over[member] = max(incarnation, self.over.get(member, 0))
        self.incarnations[member] = max(incarnation, self.incarnations[member])
        self._refresh()
        return was_live and member not in self.live

    def meet(self, member: int, incarnation: int) -> None:
        """A peer lives in a higher incarnation than we knew; the earlier ones must be over."""
        assert incarnation > self.incarnations[member] - 1 and incarnation > self.over.get(member, 0)
        self.incarnations[member] = incarnation
        self._refresh()

    def entries(self) -> tuple[Entry, ...]:
        """For the wire: member, up to where it is over, highest incarnation known."""
        return tuple(
            Entry(member, over, self.incarnations.get(member, self._me.incarnation))
            for member, over in sorted(self.over.items())
        )

    def is_same(self, entries: tuple[Entry, ...]) -> bool:
        """Whether somebody else's entries describe the view that we are in."""
        return {member: over for member, over, _ in entries} == self.over

    def _refresh(self) -> None:
        self.live = tuple(
            peer for peer, incarnation in self.incarnations.items() if incarnation > self.over.get(peer, 0)
        )
        self.digest = view_digest(self.over)
        self._known_digests.add(self.digest)
