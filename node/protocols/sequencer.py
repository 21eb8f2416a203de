"""Total order by a sequence server, over reliable FIFO channels.

Paper 002, the first of its four protocols: "the sender asks a sequence server for a number, then multicasts with it;
delivery by number". The sequence server is the member with the lowest index; for its own messages it asks itself,
without a message.

    sender            server              everybody
    REQUEST r ------>
              <------ NUMBER r: N
    DATA N ------------------------------> held until all numbers below N are delivered or void

Three messages for a multicast, one and a half round trips plus what lower numbers take.

Order. Numbers are given once, by one member in one life, so two members never deliver different messages under one
number. A sender asks after what it delivered and in the order of its submissions (the channel to the server is FIFO):
so the order is causal and FIFO, too. Delivery is AGREED, not uniform: who delivers and crashes together with the
sender may be the only one who did.

A sender that crashes between asking and multicasting leaves a number without a message, and all would wait for it. The
server must not void it alone: others may have received the message that the server lacks. The reliable layer answers
that. Its news that a life has ended comes when all survivors have received the same of its stream, and nobody takes
more. So at that news the server knows of each number it gave to that life: either it has the message, then all get it;
or nobody has it, nobody will, and the server multicasts in its own stream that the number is void (ORDER). A sender
that was expelled alive, or crashed, may have delivered such a number itself: the order is that of the members that
live on, and who is expelled counts as crashed.

The server's crash stops the order, as in the paper; beyond it, the order resumes when the server is started again.
What the server knew died with it, and is not needed: its place in the order is (epoch, number), where the *epoch* is
the life of the server that gave the number, and a later life begins at number 1 of an epoch that comes after all
earlier ones. The group only has to agree on what an ended epoch contains.

- The server's life i is *over* when the reliable layer says that it has ended, or that a later one has joined. From
  then on a member takes no number of epoch i, and it says so in its own stream: CLOSED i. Numbers it has taken have
  gone into that stream before; what it still wants a number for, it keeps.
- Epoch i is *closed* for a member when CLOSED i or the end has come from every life in whose stream it takes part, the
  server's and its own included. Nothing of epoch i comes any more, and all survivors have received the same: streams
  are the same for all. So each delivers the rest by number and passes over what is missing: it is void. Nothing in
  this depends on when who learns what. Until then, and while the server is away, what no gap precedes is delivered.
- At the news that life j has joined, a member asks it for a number for each of its submissions that has none, in their
  order, and goes on: nothing is lost, doubled or overtaken. It need not have closed epoch i: messages of epoch j wait
  for that where they arrive. Nobody has to open an epoch: a request waits in the reliable layer until the server is a
  member, and the server gives numbers from then on.

Whoever may have numbers of epoch i is waited for: to get one, a life must be a member while life i lives; to be a
member, it was welcomed by all others, who therefore take part in its stream. Whoever joins later has none: a welcome
tells it that life i is over, so it says CLOSED, too, as its first word, and nobody needs to know when it came. Epochs
in which nobody got a number (the server crashed again before it was a member) are closed in the same way.

A restarted member joins where the order stands: when the reliable layer says that it is a member, it asks the server
(REQUEST 0), whose answer N means "from N of this epoch on". All who send with a later number have been asked for their
stream before that number was given, so the joiner gets their messages, if it takes part in all streams whose life may
still get a number. It need not: a life may be over for the joiner, and not yet for the server. So the question says of
each member which is the first of its lives in whose stream the joiner takes part, and the server answers when all
earlier ones have ended for it. A joiner that got no answer before the server crashed asks the next life of it.

Words from another time. The layer below holds unicasts back while it takes nothing, and hands them to whichever life of
their target then lives. A request that waited for life i must not take a number of life j (it has been asked anew), nor
must a life take a number that its forerunner asked for. So a request names the epoch, and an answer the life it is for.

STOPPED. `can_submit` is false: the application keeps what it has. What was taken is owed as long as the server may
come back: who holds a submission or a message is not idle; who holds none is, joiners included.

Invariants: places are delivered ascending; a place below `(_epoch, _next)` is never held; what was delivered is a
prefix (of a joiner: a middle part) of one sequence, the same for all who live on.

Not here: another member in the server's place. While it is away, the order stands still.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from node.core import MAX_INCARNATION, Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.parameters import require
from node.protocols.reliable import ReliableParameters
from node.protocols.words import pack, unpack
from node.wire import Flag, Kind, Message

CONTROL = Flag.CONTROL.value
VOID_PER_ORDER = 128
POSITION = 0
"""The request number that asks where the order stands, and takes no number."""

NEWS = (Kind.RELIABLE_ENDED, Kind.RELIABLE_JOINED)
OF_THE_SERVER = (Kind.SEQUENCER_NUMBER, Kind.SEQUENCER_ORDER)

Life = tuple[int, int]
"""(member, incarnation)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencerParameters:
    """Of the sequencer and of the reliable layer under it."""

    outstanding: int = 64
    """Requests without an answer; more submissions wait in the host."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        require(1 <= self.outstanding <= 65536, f"outstanding must lie between 1 and 65536, not {self.outstanding}")


class Phase(enum.StrEnum):
    """JOINING until we know from which number on we deliver; STOPPED while there is no server."""

    JOINING = "joining"
    RUNNING = "running"
    STOPPED = "stopped"


class SequencerReport(enum.IntEnum):
    """Codes of our reports; `member` is the server."""

    STOPPED = 0x21
    """The server is gone: nothing gets a number until it is started again. `value`: the epoch that is over."""
    VOID = 0x22
    """Number `value` stays without a message; in an epoch that closes also all after it, up to the next message."""
    RESUMED = 0x23
    """The server is back: who wants a number gets it in epoch `value`."""
    CLOSED = 0x24
    """All that has a number of the epochs up to `value` is delivered."""


class SequencerCore(Core):
    """See the module's text."""

    def __init__(self, *, membership: Membership, parameters: SequencerParameters) -> None:
        self._us = membership
        self._life: Life = (membership.member, membership.incarnation)
        self._server = membership.members[0]
        self._is_server = membership.member == self._server
        self._outstanding = parameters.outstanding
        is_first = membership.incarnation == 1 or not membership.peers
        self._phase = Phase.RUNNING if is_first else Phase.JOINING
        self._is_member = is_first
        """Whether the layer below has said so."""

        self._serving = membership.incarnation if is_first else 0
        """The life of the server that we ask for numbers; 0: none."""
        self._over = max(self._serving - 1, 0)
        """The last life of the server that is over."""
        lives = ((member, membership.incarnation) for member in membership.members)
        self._closed: dict[Life, int] = dict.fromkeys(lives, self._over) if is_first else {}
        """Per life in whose stream we take part, ours included: nothing of the epochs up to this comes of it."""
        self._parts: dict[int, int] = {}
        """Of a joiner, per peer: the first of its lives in whose stream we take part."""

        self._requests = 0
        self._asked: dict[int, Submission] = {}
        """Per request, ascending: what is to be multicast with the number."""
        self._first = (self._serving, 1)
        """The place where our order begins; unknown while its epoch is 0."""
        self._epoch, self._next = self._first
        """The next place to deliver."""
        self._held: dict[int, dict[int, Message | None]] = {}
        """Per epoch and number from there on: its message, None for a void one."""

        self._last_given = 0
        self._unused: dict[Life, set[int]] = {}
        """At the server, per life: numbers given whose message has not come."""
        self._questions: dict[Life, dict[int, int]] = {}
        """At the server, per joiner that asked where the order stands: its `_parts`."""
        self._handlers: dict[Kind, Callable[[Message, list[Effect]], None]] = {
            Kind.SEQUENCER_REQUEST: self._on_request,
            Kind.SEQUENCER_NUMBER: self._on_number,
            Kind.SEQUENCER_DATA: self._on_data,
            Kind.SEQUENCER_ORDER: self._on_order,
            Kind.SEQUENCER_CLOSED: self._on_closed,
            Kind.RELIABLE_ENDED: self._on_ended,
            Kind.RELIABLE_JOINED: self._on_joined,
        }

    @property
    def can_submit(self) -> bool:
        return self._phase is Phase.RUNNING and len(self._asked) < self._outstanding

    @property
    def is_idle(self) -> bool:
        is_waiting = self.held or any(self._unused.values()) or self._questions
        return self._phase is not Phase.JOINING and not is_waiting

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def held(self) -> int:
        """Messages that wait for a lower number, and submissions that wait for one."""
        return sum(map(len, self._held.values())) + len(self._asked)

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"member {self._us.member} takes no submission now: ask can_submit before")
        if submission.target is not None:
            raise LocalError("the sequencer orders multicasts; send to one member through the layer below")
        if self._is_server:
            return [Multicast(message=self._data(self._give(self._life), submission))]
        self._requests += 1
        self._asked[self._requests] = submission
        return [self._request(self._requests)]

    def take_back(self) -> tuple[Submission, ...]:
        """While there is no server: what has no number, in its order; it gets none any more. For a user who has another
        way (node/protocols/adaptive.py). Nothing while there is a server.
        """
        if self._phase is not Phase.STOPPED:
            return ()
        taken = tuple(self._asked.values())
        self._asked.clear()
        return taken

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        reason = self._ignore(message)
        if reason is not None:
            return [Report(code=reason, member=source, value=len(message.payload))]
        out: list[Effect] = []
        self._handlers[message.kind](message, out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        raise LocalError(f"{timer} is no timer of the sequencer: it has none")

    def _ignore(self, message: Message) -> DropReason | None:
        """Why a message is refused before anybody looks into it."""
        kind = message.kind
        if kind in NEWS:
            return None
        if kind not in self._handlers or (message.origin, message.incarnation) not in self._closed:
            return DropReason.UNEXPECTED
        if kind is Kind.SEQUENCER_REQUEST and (not self._is_server or self._phase is not Phase.RUNNING):
            return DropReason.UNEXPECTED
        is_of_server = message.origin == self._server
        if (kind in OF_THE_SERVER and not is_of_server) or (kind is Kind.SEQUENCER_CLOSED and is_of_server):
            return DropReason.UNEXPECTED
        return None

    # At the server.

    def _on_request(self, message: Message, out: list[Effect]) -> None:
        is_question = message.seq == POSITION
        parts = self._parts_in(message) if is_question else {}
        if not is_question and len(message.words) != 1:
            raise RemoteError(DropReason.MALFORMED, f"request {message.seq} with {len(message.words)} words")
        life = (message.origin, message.incarnation)
        if message.words[0] != self._us.incarnation:
            out.append(_refusal(message, DropReason.STALE_INCARNATION))
        elif is_question:
            self._questions[life] = parts
            self._answer_questions(out)
        else:
            out.append(self._answer(life, message.seq, self._give(life)))

    def _parts_in(self, question: Message) -> dict[int, int]:
        """The `_parts` of a joiner: an entry for each of its peers, ascending."""
        entries = tuple(map(unpack, question.words[1:]))
        peers = [member for member in self._us.members if member != question.origin]
        if [(entry.member, entry.number) for entry in entries] != [(member, 0) for member in peers]:
            raise RemoteError(DropReason.MALFORMED, "a joiner that does not say where it takes part")
        return {entry.member: entry.incarnation for entry in entries}

    def _give(self, life: Life) -> int:
        self._last_given += 1
        self._unused.setdefault(life, set()).add(self._last_given)
        return self._last_given

    def _answer(self, life: Life, request: int, number: int) -> Effect:
        words = (number, life[1])
        answer = self._us.message(Kind.SEQUENCER_NUMBER, seq=request, flags=CONTROL, words=words)
        return Send(target=life[0], message=answer)

    def _answer_questions(self, out: list[Effect]) -> None:
        """Those of joiners that take part in the streams of all who may get a number."""
        for joiner, parts in sorted(self._questions.items()):
            if all(incarnation >= parts.get(member, 0) for member, incarnation in self._closed):
                del self._questions[joiner]
                out.append(self._answer(joiner, POSITION, self._last_given + 1))

    def _void(self, life: Life, out: list[Effect]) -> None:
        """All survivors have the same of this stream: what has not come with a given number will come to nobody."""
        void = sorted(self._unused.pop(life, set()))
        for start in range(0, len(void), VOID_PER_ORDER):
            words = tuple(void[start : start + VOID_PER_ORDER])
            out.append(Multicast(message=self._us.message(Kind.SEQUENCER_ORDER, flags=CONTROL, words=words)))

    # At the sender.

    def _request(self, request: int, words: tuple[int, ...] = ()) -> Effect:
        words = (self._serving, *words)
        message = self._us.message(Kind.SEQUENCER_REQUEST, seq=request, flags=CONTROL, words=words)
        return Send(target=self._server, message=message)

    def _ask_position(self) -> Effect:
        return self._request(POSITION, tuple(pack(member, first, 0) for member, first in sorted(self._parts.items())))

    def _on_number(self, message: Message, out: list[Effect]) -> None:
        if len(message.words) != 2 or message.words[0] == 0:
            raise RemoteError(DropReason.MALFORMED, f"an answer with the words {message.words}")
        number, incarnation = message.words
        if (message.incarnation, incarnation) != (self._serving, self._us.incarnation):
            out.append(_refusal(message, DropReason.STALE_INCARNATION))
        elif message.seq == POSITION and self._phase is Phase.JOINING:
            self._begin(message.incarnation, number)
            self._enter_running(out)
        elif message.seq in self._asked:
            out.append(Multicast(message=self._data(number, self._asked.pop(message.seq))))
        else:
            out.append(_refusal(message, DropReason.UNEXPECTED))

    def _data(self, number: int, submission: Submission) -> Message:
        return self._us.message(
            Kind.SEQUENCER_DATA,
            seq=number,
            flags=submission.flags,
            words=(self._serving,),
            inner=submission.inner,
            payload=submission.payload,
        )

    # At everybody.

    def _on_data(self, message: Message, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        number = message.seq
        epoch = self._epoch_of(message)
        if epoch > max(self._serving, self._over):
            # The server is welcomed by all who live on before it gives a number: we are not one of them.
            out.append(_refusal(message, DropReason.UNEXPECTED))
            return
        if self._is_server and epoch == self._us.incarnation:
            self._unused.get(life, set()).discard(number)
        if self._hold(epoch, number, message):
            self._advance(out)
        elif self._epoch and (epoch, number) >= self._first:
            out.append(_refusal(message, DropReason.DUPLICATE))

    def _epoch_of(self, message: Message) -> int:
        """RemoteError MALFORMED when its origin cannot have that number."""
        if len(message.words) != 1 or message.seq == 0:
            raise RemoteError(DropReason.MALFORMED, f"data with number {message.seq} and the words {message.words}")
        epoch = message.words[0]
        is_of_server = message.origin == self._server
        is_closed = epoch <= self._closed[message.origin, message.incarnation]
        if is_closed or epoch > MAX_INCARNATION or (is_of_server and epoch != message.incarnation):
            raise RemoteError(DropReason.MALFORMED, f"a number of epoch {epoch}, which its sender cannot have")
        return epoch

    def _on_order(self, message: Message, out: list[Effect]) -> None:
        if 0 in message.words:
            raise RemoteError(DropReason.MALFORMED, "0 is no number, and cannot be void")
        void = [number for number in message.words if self._hold(message.incarnation, number, None)]
        out.extend(Report(code=SequencerReport.VOID, member=message.origin, value=number) for number in void)
        self._advance(out)

    def _hold(self, epoch: int, number: int, message: Message | None) -> bool:
        """False when something has that place already: the first one counts, and whoever sent the second is wrong. Also
        when it is before our beginning.
        """
        is_past = (epoch, number) < (self._epoch, self._next) if self._epoch else epoch <= self._over
        if is_past or number in self._held.get(epoch, ()):
            return False
        self._held.setdefault(epoch, {})[number] = message
        return True

    def _advance(self, out: list[Effect]) -> None:
        """Deliver all whose turn it is."""
        if not self._epoch:
            return
        self._deliver_next(out)
        if self._over < self._epoch:
            return
        closed = min(self._closed.values())
        if closed < self._epoch:
            return
        for epoch in sorted(epoch for epoch in self._held if epoch <= closed):
            self._deliver_rest(epoch, out)
        self._epoch, self._next = closed + 1, 1
        out.append(Report(code=SequencerReport.CLOSED, member=self._server, value=closed))
        self._deliver_next(out)

    def _deliver_next(self, out: list[Effect]) -> None:
        """All up to the next gap."""
        held = self._held.get(self._epoch, {})
        while self._next in held:
            message = held.pop(self._next)
            self._next += 1
            if message is not None:
                out.append(Deliver.of(message))

    def _deliver_rest(self, epoch: int, out: list[Effect]) -> None:
        """All of an epoch that is closed: gaps stay."""
        following = self._next if epoch == self._epoch else 1
        for number, message in sorted(self._held.pop(epoch).items()):
            if number > following:
                out.append(Report(code=SequencerReport.VOID, member=self._server, value=following))
            following = number + 1
            if message is not None:
                out.append(Deliver.of(message))

    def _begin(self, epoch: int, number: int) -> None:
        """Our order begins here; what is before is not ours."""
        self._first = (epoch, number)
        self._epoch, self._next = self._first
        held = self._held.get(epoch, {})
        self._held = {epoch: {number: message for number, message in held.items() if number >= self._next}}

    # Who ends and who joins.

    def _on_closed(self, message: Message, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        if message.words or not self._closed[life] < message.seq <= MAX_INCARNATION:
            raise RemoteError(DropReason.MALFORMED, f"epoch {message.seq} closed after {self._closed[life]}")
        self._closed[life] = message.seq
        self._advance(out)

    def _on_ended(self, message: Message, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        self._closed.pop(life, None)
        self._questions.pop(life, None)
        if not self._is_member:
            self._parts[message.origin] = message.incarnation + 1
        if message.origin == self._server:
            self._learn_over(message.incarnation, out)
        self._void(life, out)
        self._answer_questions(out)
        self._advance(out)

    def _on_joined(self, message: Message, out: list[Effect]) -> None:
        """News that another takes part in our stream and we in its; or, after all of those, that we are a member."""
        life = (message.origin, message.incarnation)
        is_of_server = message.origin == self._server
        if life == self._life:
            self._enter_group(out)
            return
        self._closed[life] = message.incarnation - 1 if is_of_server else 0
        if not self._is_member:
            self._parts[message.origin] = message.incarnation
        if is_of_server:
            self._serving = message.incarnation
            self._learn_over(message.incarnation - 1, out)
            self._turn_to_server(out)

    def _learn_over(self, epoch: int, out: list[Effect]) -> None:
        """This life of the server and all before it are over."""
        if epoch <= self._over:
            return
        self._over = epoch
        if not self._epoch:
            # Our order will begin later than anything of this epoch.
            self._held = {later: held for later, held in self._held.items() if later > epoch}
        if not self._is_member:
            return
        out.append(self._word_of_closing())
        if self._serving <= epoch:
            self._enter_stopped(out)

    def _word_of_closing(self) -> Effect:
        return Multicast(message=self._us.message(Kind.SEQUENCER_CLOSED, seq=self._over, flags=CONTROL))

    def _turn_to_server(self, out: list[Effect]) -> None:
        """It lives: ask it for what is still wanted of it."""
        if not self._is_member:
            return
        out.append(Report(code=SequencerReport.RESUMED, member=self._server, value=self._serving))
        if self._epoch:
            self._enter_running(out)
            out.extend(self._request(request) for request in self._asked)
        else:
            self._enter_joining(out)

    def _enter_group(self, out: list[Effect]) -> None:
        """We are a member now, and know who else is."""
        self._is_member = True
        self._closed[self._life] = self._us.incarnation - 1 if self._is_server else 0
        if self._is_server:
            self._serving = self._us.incarnation
            self._over = self._serving - 1
            self._begin(self._serving, 1)
            self._turn_to_server(out)
            return
        if self._over:
            out.append(self._word_of_closing())
        if self._serving:
            self._enter_joining(out)
        else:
            self._enter_stopped(out)

    def _enter_joining(self, out: list[Effect]) -> None:
        self._phase = Phase.JOINING
        out.append(self._ask_position())

    def _enter_running(self, out: list[Effect]) -> None:
        self._phase = Phase.RUNNING
        self._advance(out)

    def _enter_stopped(self, out: list[Effect]) -> None:
        self._phase = Phase.STOPPED
        self._serving = 0
        out.append(Report(code=SequencerReport.STOPPED, member=self._server, value=self._over))


def _refusal(message: Message, reason: DropReason) -> Report:
    return Report(code=reason, member=message.origin, value=len(message.payload))
