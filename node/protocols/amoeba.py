"""Amoeba's broadcast: total order by a sequencer that writes one log, with a degree of resilience. One view.

Paper 004, section 5, sends "by the reliable broadcast of Amoeba": Kaashoek, Tanenbaum, Hummel, Bal, "An efficient
reliable broadcast protocol", 1989 (below: K). The sequencer is the view's first member.

    PB  sender           sequencer         members        BB  sender                    members
        REQUEST k -----> DATA N, k ------> number N           BODY k -----------------> buffered
                                                              sequencer: ACCEPT N, k -> number N

Rules, each with its method:

1. PB: the sender sends a short message to the sequencer, which multicasts it with the next number of the log. BB: the
   sender multicasts a long one (`large_bytes`), and the sequencer multicasts its number (`on_submit`, `_give_number`).
2. The sequencer numbers each sender's messages in the order of submission, and none twice (`_give_number`).
3. A message that asks for resilience r is tentative when it is numbered. The first r other members by rank tell the
   sequencer up to which number they have stored the log (STORED); then the sequencer tells all members (ACCEPT without
   words). With fewer than r other members, all of them must store it (`_tell_stored`, `_tell_accepted`). Everything
   that the sender of a DATA had delivered is accepted, too (`_add_to_log`).
4. Every member delivers the log in its order, up to the first message that is incomplete or tentative (`_deliver`).
5. At the end of the view every survivor delivers the log of the cut, tentative messages too. It skips a number without
   a body. It drops a message of an excluded sender that depends on a message outside the cut, and all later messages of
   that sender. A submission without a number in the cut is handed back (`close`).

Invariants: the log's numbers are consecutive; the messages of each sender have ascending numbers; before `close` a
member has delivered exactly the numbers up to `_delivered`. Messages, the promise of r, argument and deviations:
docs/protocols/amoeba.md.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from node.core import Closing, MakeCore, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send
from node.errors import DropReason, LocalError
from node.packing import MAX_NUMBER, pack, unpack
from node.parameters import require, require_range
from node.protocols.base import CONTROL, OrderCore
from node.protocols.prefix import Walk, count_of
from node.reliable.parameters import ReliableParameters
from node.wire import Kind, Message

MAX_RESILIENCE = 0xFFFF
LOG_KINDS = (Kind.AMOEBA_DATA, Kind.AMOEBA_ACCEPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class AmoebaParameters:
    """Parameters of the broadcast and of the reliable layer below it."""

    large_bytes: int = 1024
    """Senders send shorter messages to the sequencer (PB), and multicast messages from this length on (BB)."""
    resilience: int = 1
    """Number of other members that must have stored a message before any member delivers it, unless the submission has
    another number. With 0 an excluded member may have delivered in another order than the survivors."""
    outstanding: int = 64
    """Most own messages without a number."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        require(self.large_bytes >= 0, f"large_bytes must not be negative, not {self.large_bytes}")
        require(
            0 <= self.resilience <= MAX_RESILIENCE,
            f"resilience must lie between 0 and {MAX_RESILIENCE} members, not {self.resilience}",
        )
        require_range("outstanding", self.outstanding, 1, 4096)


class AmoebaReport(enum.IntEnum):
    """Codes of our reports, both made at the end of a view. `value`: the number in the log; `member`: the sender."""

    VOID = 0xE1
    """No survivor has the body of this number."""
    DROPPED = 0xE2
    """The message, of an excluded sender, may depend on one outside the cut, or follows a message of its sender that is
    not delivered."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """A number of the log: message `number` of `origin`. `content`: DATA or BODY, None until we have it."""

    origin: int
    incarnation: int
    number: int
    content: Message | None

    @property
    def resilience(self) -> int:
        assert self.content is not None
        return self.content.words[-2]

    @property
    def word(self) -> int:
        """The word of the sender's Prefix (node/protocols/prefix.py)."""
        assert self.content is not None
        return self.content.words[-1]


class AmoebaCore(OrderCore):
    """See the module's docstring."""

    ordered_by = "numbers of the log"
    returning = tuple(kind for kind in Kind if kind.name.startswith("AMOEBA_"))

    def __init__(self, *, membership: Membership, parameters: AmoebaParameters) -> None:
        super().__init__(membership)
        self._parameters = parameters
        self._sequencer = membership.first
        self._is_sequencer = membership.member == self._sequencer
        self._others = [member for member in membership.ranks or membership.members if member != self._sequencer]
        """All members but the sequencer, by rank: the first r of them store a message of resilience r."""

        self._submitted = 0
        self._asked: dict[int, Submission] = {}
        """Own messages that are not in the log here, by number, ascending."""
        self._log: dict[int, Entry] = {}
        """Entries that are not delivered here, by number of the log, ascending."""
        self._bodies: dict[int, dict[int, Message]] = defaultdict(dict)
        """By sender and its number: BODY messages whose entry of the log has not taken them."""
        self._numbered = 0
        """The last number of the log received."""
        self._last_of: dict[int, int] = defaultdict(int)
        """By sender: the last of its messages that has a number of the log."""
        self._complete = 0
        """The number of the log up to which we have all messages."""
        self._accepted = 0
        """The number up to which the sequencer has told us that the log is stored at enough members."""
        self._delivered = 0
        self._checked = 0
        """The number up to which we have checked whether the sequencer waits for our STORED."""
        self._handlers = {
            Kind.AMOEBA_REQUEST: self._on_request,
            Kind.AMOEBA_STORED: self._on_stored,
            Kind.AMOEBA_BODY: self._on_body,
            Kind.AMOEBA_DATA: self._on_numbered,
            Kind.AMOEBA_ACCEPT: self._on_numbered,
        }

        # At the sequencer: the numbers that it has given, ahead of those that the layer below has delivered to it.
        self._given = 0
        self._given_of: dict[int, int] = defaultdict(int)
        self._announced = 0
        """The number up to which we have announced the log as stored."""
        self._stored: dict[int, int] = defaultdict(int)
        """By other member: the number up to which it has told us that it has stored the log."""

    @property
    def can_submit(self) -> bool:
        return len(self._asked) < self._parameters.outstanding and self._submitted < MAX_NUMBER

    @property
    def is_idle(self) -> bool:
        return self.buffered == 0 and self._given <= self._delivered

    @property
    def buffered(self) -> int:
        """Own messages without a number, undelivered entries of the log, and bodies without an entry."""
        return len(self._asked) + len(self._log) + sum(map(len, self._bodies.values()))

    def _submit(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        """Rule 1."""
        resilience = self._resilience_of(submission)
        is_large = len(submission.payload) >= self._parameters.large_bytes
        kind = Kind.AMOEBA_BODY if is_large and not self._is_sequencer else Kind.AMOEBA_REQUEST
        message = self._us.carrying(submission, kind, seq=self._submitted + 1, words=(resilience, self._prefix.word))
        self._submitted += 1
        self._asked[self._submitted] = submission
        if self._is_sequencer:
            self._give_number(message, out)
        elif is_large:
            out.append(Multicast(message=message))
        else:
            out.append(Send(target=self._sequencer, message=message))

    def _on_accepted(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        super()._on_accepted(message, now_ns, out)
        self._complete_log()
        self._tell_stored(out)
        self._deliver(out)
        self._tell_accepted(out)

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        for message in self._acceptable(rest):
            if message.kind is Kind.AMOEBA_BODY:
                self._bodies[message.origin][message.seq] = message
            elif message.kind in LOG_KINDS:
                self._add_to_log(message)
        out: list[Effect] = []
        walk = Walk(self._prefix, survivors)
        interrupted: set[int] = set()
        """Senders of which a message is not delivered; later ones are not delivered, either."""
        for index, entry in self._log.items():
            if not self._fill(entry):
                interrupted.add(entry.origin)
                out.append(Report(code=AmoebaReport.VOID, member=entry.origin, value=index))
            elif entry.origin in interrupted or not walk.admits(entry.origin, entry.word):
                interrupted.add(entry.origin)
                out.append(Report(code=AmoebaReport.DROPPED, member=entry.origin, value=index))
            else:
                walk.delivered(entry.origin, index)
                self._forget_asked(entry)
                out.append(_delivery(index, entry))
        self._log.clear()
        self._bodies.clear()
        return Closing(effects=tuple(out), handed_back=tuple(self._asked.values()))

    def _resilience_of(self, submission: Submission) -> int:
        """The resilience of a submission. LocalError: its words are no resilience."""
        if not submission.words:
            return self._parameters.resilience
        if len(submission.words) != 1 or not 0 <= submission.words[0] <= MAX_RESILIENCE:
            raise LocalError(f"{submission.words} is no resilience between 0 and {MAX_RESILIENCE}")
        return submission.words[0]

    def _refusal(self, message: Message) -> DropReason | None:
        is_from_sequencer = message.origin == self._sequencer
        match message.kind:
            case Kind.AMOEBA_REQUEST | Kind.AMOEBA_STORED:
                is_expected = self._is_sequencer and not is_from_sequencer
            case Kind.AMOEBA_BODY:
                is_expected = not is_from_sequencer
            case _:
                is_expected = is_from_sequencer
        if not is_expected:
            return DropReason.UNEXPECTED
        if not self._is_well_formed(message):
            return DropReason.MALFORMED
        is_known = message.kind is Kind.AMOEBA_BODY and message.seq in self._bodies[message.origin]
        return DropReason.DUPLICATE if is_known else None

    def _is_well_formed(self, message: Message) -> bool:
        words = message.words
        match message.kind:
            case Kind.AMOEBA_REQUEST | Kind.AMOEBA_BODY:
                return 0 < message.seq <= MAX_NUMBER and len(words) == 2 and words[0] <= MAX_RESILIENCE
            case Kind.AMOEBA_STORED:
                return not words and message.seq <= self._given
            case Kind.AMOEBA_ACCEPT if not words:
                return message.seq <= self._numbered
        is_data = message.kind is Kind.AMOEBA_DATA
        if len(words) != (3 if is_data else 1) or (is_data and words[1] > MAX_RESILIENCE):
            return False
        origin, incarnation, number = unpack(words[0])
        is_next = message.seq == self._numbered + 1 and number == self._last_of.get(origin, 0) + 1
        return origin in self._us.members and incarnation > 0 and is_next

    # At the sequencer.

    def _on_request(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._give_number(message, out)

    def _give_number(self, message: Message, out: list[Effect]) -> None:
        """Multicast the next number of the log: in DATA for a REQUEST, in ACCEPT for a BODY, which all members
        receive."""
        origin = message.origin
        if message.seq != self._given_of[origin] + 1:
            out.append(Report.refusal(DropReason.OUT_OF_WINDOW, message, origin))
            return
        self._given_of[origin] = message.seq
        self._given += 1
        entry = pack(origin, message.incarnation, message.seq)
        if message.kind is Kind.AMOEBA_BODY:
            numbered = self._us.message(Kind.AMOEBA_ACCEPT, seq=self._given, flags=CONTROL, words=(entry,))
        else:
            numbered = self._us.message(
                Kind.AMOEBA_DATA,
                seq=self._given,
                flags=message.flags,
                words=(entry, *message.words),
                inner=message.inner,
                payload=message.payload,
            )
        out.append(Multicast(message=numbered))

    def _on_stored(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._stored[message.origin] = max(self._stored[message.origin], message.seq)

    def _tell_accepted(self, out: list[Effect]) -> None:
        """Tell all members the number up to which the log is stored at enough members besides the sequencer."""
        if not self._is_sequencer:
            return
        start = upto = max(self._announced, self._delivered)
        while upto < self._complete and self._is_stored(upto + 1):
            upto += 1
        if any(self._storers(index) for index in range(start + 1, upto + 1)):
            self._announced = upto
            self._accept(out)

    def _accept(self, out: list[Effect]) -> None:
        """Everything up to `_announced` is stored as it must be."""
        out.append(Multicast(message=self._us.message(Kind.AMOEBA_ACCEPT, seq=self._announced, flags=CONTROL)))

    def _is_stored(self, index: int) -> bool:
        return all(self._stored[member] >= index for member in self._storers(index))

    # At every member.

    def _on_body(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._bodies[message.origin][message.seq] = message
        if self._is_sequencer:
            self._give_number(message, out)

    def _on_numbered(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._add_to_log(message)

    def _add_to_log(self, message: Message) -> None:
        """Take in DATA, or an ACCEPT of either kind."""
        if message.kind is Kind.AMOEBA_ACCEPT and not message.words:
            self._accepted = max(self._accepted, message.seq)
            return
        origin, incarnation, number = unpack(message.words[0])
        self._numbered = message.seq
        self._last_of[origin] = number
        content = message if message.kind is Kind.AMOEBA_DATA else None
        if content is not None:
            self._accepted = max(self._accepted, min(count_of(content.words[-1]), message.seq - 1))
        self._log[message.seq] = Entry(origin=origin, incarnation=incarnation, number=number, content=content)

    def _fill(self, entry: Entry) -> bool:
        """Give the entry its body, if it lacks its content. Returns whether it has it now."""
        if entry.content is None:
            entry.content = self._bodies[entry.origin].pop(entry.number, None)
        return entry.content is not None

    def _complete_log(self) -> None:
        while self._complete < self._numbered and self._fill(self._log[self._complete + 1]):
            self._complete += 1
            self._forget_asked(self._log[self._complete])

    def _forget_asked(self, entry: Entry) -> None:
        """An own message that is in the log needs no number any more."""
        if entry.origin == self._us.member:
            self._asked.pop(entry.number, None)

    def _storers(self, index: int) -> list[int]:
        """The members, besides the sequencer, that must have stored this complete entry."""
        return self._others[: self._log[index].resilience]

    def _awaited(self, index: int) -> list[int]:
        """The members of which we must know that they have stored this complete entry before we deliver it."""
        return self._storers(index)

    def _tell_stored(self, out: list[Effect]) -> None:
        """Tell the sequencer that we have stored the log, if one of the new messages waits for that."""
        if self._is_sequencer:
            return
        new = range(max(self._checked, self._accepted) + 1, self._complete + 1)
        self._checked = self._complete
        if any(self._us.member in self._storers(index) for index in new):
            stored = self._us.message(Kind.AMOEBA_STORED, seq=self._complete, flags=CONTROL)
            out.append(Send(target=self._sequencer, message=stored))

    def _deliver(self, out: list[Effect]) -> None:
        while self._delivered < self._complete:
            index = self._delivered + 1
            entry = self._log[index]
            if index > self._accepted and self._awaited(index):
                return
            del self._log[index]
            self._delivered = index
            self._prefix.delivered(entry.origin, index)
            out.append(_delivery(index, entry))


def _delivery(index: int, entry: Entry) -> Deliver:
    assert entry.content is not None
    return Deliver(
        payload=entry.content.payload,
        origin=entry.origin,
        incarnation=entry.incarnation,
        seq=index,
        inner=entry.content.inner,
    )


def begin(parameters: AmoebaParameters) -> MakeCore:
    """The function that makes the core of each view."""
    return lambda us, _, __: AmoebaCore(membership=us, parameters=parameters)
