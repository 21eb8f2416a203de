"""The state of an entity of the CO protocol: the paper's variables and rules, without timers and effects.

Paper 000, sections 3.1 to 3.5. Entities are ranks 0 to n-1 here; `k` is the source of the messages, `j` the entity that
knows.

    paper      here                  meaning
    SEQ        seq                   number of the next message that we send; always REQ[i], i our own rank
    REQ[j]     req[j]                next message that we expect from E_j
    AL[k][j]   al.rows[j][k]         next message that E_j expects from E_k, as far as we know
    PAL[k][j]  pal.rows[j][k]        next message of E_k that E_j pre-acknowledges, as E_j's messages say
               stated.rows[j][k]     the same, as E_j itself has stated (CO_STATE)
    minAL[k]   al.least[k]           all below have been accepted by all entities
    minPAL[k]  pal.least[k]          all below have been pre-acknowledged by all entities
    BUF[j]     buf[j]                free bytes of buffer that E_j last reported; `free` is our own
    SL         sl                    own messages that not all have accepted: we may have to resend them
    RRL[j]     rrl[j]                accepted from E_j, not pre-acknowledged
    PRL        prl                   pre-acknowledged, in causal order
    ARL        (delivered at once)   acknowledged

A matrix lies by the member that knows, so that a message's ACK becomes one row; the least of every column is kept up to
date. E_k's messages raise minAL[k] at most once each, and each rise looks at one column: O(n) a message.

PAL and `stated` are two matrices because they are two arguments. E_j's message p, once it is pre-acknowledged, says
that all know that E_j has accepted what p.ACK covers; only when such messages of *all* entities cover a message
do all know that all have accepted it. A statement says that E_j itself has pre-acknowledged. A mixture of the two
proves nothing, so a message is acknowledged when it is below minPAL or below the least stated number.

The order: `precedes` is theorem 1, `_insert` is the CPI operation.

LO, the weaker service, uses the first stage only: a message of another entity is delivered when it is accepted. It
stays in RRL, outside the buffers, until all have accepted it: another member may ask for it when the view ends.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import le, lt
from typing import NamedTuple

from node.protocols.co.codec import Vector
from node.wire import Message


class Service(enum.Enum):
    """The service to the application (paper 000, section 2.3)."""

    CO = "causal order"
    LO = "the order of each sender"


class Acceptance(enum.StrEnum):
    """The condition for accepting a message."""

    STRICT = "strict"
    """It is the next of its sender, and all messages that its ACK covers are accepted."""
    LITERAL = "literal"
    """It is the next of its sender: the paper's condition."""


class Recovery(enum.StrEnum):
    """How a receiver and a source repair a loss."""

    SELECTIVE = "selective"
    """The receiver keeps what comes behind the gap; the source sends again what is missing: the paper's range."""
    GO_BACK_N = "go-back-n"
    """The receiver takes the messages of a source in their order only; the source sends again all from the gap on."""


class Pdu(NamedTuple):
    """One message: `src` is the sender's rank, `size` the bytes of buffer that it takes up."""

    src: int
    seq: int
    ack: Vector
    buf: int
    size: int
    message: Message


def precedes(p: Pdu, q: Pdu) -> bool:
    """p -> q by numbers alone. Theorem 1: of one source p.SEQ < q.SEQ, otherwise p.SEQ < q.ACK[src(p)]. As q.ACK of
    its own source is q.SEQ, one comparison does for both."""
    return p.seq < q.ack[p.src]


class Matrix:
    """AL or PAL: a row of next numbers for each member that knows, and the least of each column. All start at 1 and
    only rise."""

    __slots__ = ("_at_least", "least", "rows")

    def __init__(self, count: int) -> None:
        self.rows: list[Vector] = [(1,) * count] * count
        self.least = [1] * count
        self._at_least = [count] * count
        """By column: the number of rows with its least."""

    def learn(self, j: int, vector: Vector) -> list[int]:
        """Raise the row of E_j to the numbers that it expects next. Returns the columns whose least has risen,
        ascending."""
        row = self.rows[j]
        if vector == row:
            return []
        merged = tuple(map(max, row, vector))
        if merged == row:
            return []
        self.rows[j] = merged
        at_least = self._at_least
        risen: list[int] = []
        triples = enumerate(zip(row, merged, self.least, strict=True))
        for k in [k for k, (old, new, low) in triples if old == low != new]:
            at_least[k] -= 1
            if not at_least[k]:
                risen.append(k)
        for k in risen:
            column = [one[k] for one in self.rows]
            low = min(column)
            self.least[k] = low
            at_least[k] = column.count(low)
        return risen


class CoState:
    """The variables of E_i, i = `me`. `buffer_bytes` is the buffer of each entity, H is `longest_bytes`, W is
    `window`."""

    def __init__(
        self,
        *,
        count: int,
        me: int,
        window: int,
        buffer_bytes: int,
        longest_bytes: int,
        service: Service = Service.CO,
        acceptance: Acceptance = Acceptance.STRICT,
    ) -> None:
        self.count = count
        self.me = me
        self.window = window
        self.buffer_bytes = buffer_bytes
        self.longest_bytes = longest_bytes
        self.service = service
        self._is_strict = acceptance is Acceptance.STRICT and service is Service.CO
        self.req = [1] * count
        self.limit = [1 + window] * count
        """No honest entity can expect more than limit[k] of E_k, which keeps the flow condition, and we are part of
        that."""
        self.limit[me] = 1
        self.al = Matrix(count)
        self.pal = Matrix(count)
        self.stated = Matrix(count)
        self.buf = [buffer_bytes] * count
        self.last_ack: list[Vector] = [(1,) * count] * count
        """By entity: ACK of the last message that we accepted from it. The ACK of the next one cannot be less."""
        self.told_ack: Vector = (1,) * count
        """The ACK that we last multicast."""
        self._heard = [(0, 0)] * count
        """By entity: its last statement from which we took BUF."""
        self.sl: dict[int, Pdu] = {}
        self.rrl: list[deque[Pdu]] = [deque() for _ in range(count)]
        self.prl: deque[Pdu] = deque()
        self._covered = [1] * count
        """By source: the greatest number in the ACKs of PRL. A message of the source from there on precedes nothing in
        PRL."""
        self.resident = 0
        """Messages in all logs and in the holding buffer ..."""
        self.used = 0
        """... and their bytes."""
        self._others_least_buf = buffer_bytes

    # Sending (section 3.2).

    @property
    def seq(self) -> int:
        return self.req[self.me]

    @property
    def free(self) -> int:
        """Our own BUF: the bytes that neither the logs nor the holding buffer use. The next message in order is
        accepted even when nothing is free, so more than all may be used."""
        return max(0, self.buffer_bytes - self.used)

    @property
    def min_buf(self) -> int:
        return min(self._others_least_buf, self.free)

    def share(self, buf: int) -> int:
        """Most messages under way of one entity by this BUF."""
        return min(self.window, buf // (self.longest_bytes * self.count))

    @property
    def is_flow_open(self) -> bool:
        """The flow condition: minAL[i] <= SEQ < minAL[i] + min(W, minBUF / (H * n))."""
        me = self.me
        return self.req[me] < self.al.least[me] + self.share(self.min_buf)

    def is_open(self, buf: int) -> bool:
        """Whether BUF limits no sender more than an empty buffer would."""
        return self.share(buf) == self.share(self.buffer_bytes)

    @property
    def are_buffers_open(self) -> bool:
        return self.is_open(self._others_least_buf)

    def size_of(self, payload: bytes) -> int:
        """The bytes of buffer for a payload, in buffers of H bytes each; a longer message takes several."""
        return -(-max(1, len(payload)) // self.longest_bytes) * self.longest_bytes

    # Accepting (section 3.2).

    def lacks(self, p: Pdu) -> tuple[int, int] | None:
        """None: the acceptance condition holds. Otherwise the source and number of a message that must come first."""
        req = self.req
        if p.seq != req[p.src]:
            return p.src, p.seq - 1
        if not self._is_strict or all(map(le, p.ack, req)):
            return None
        k = next(k for k, (ack, expected) in enumerate(zip(p.ack, req, strict=True)) if ack > expected)
        return k, p.ack[k] - 1

    def accept(self, p: Pdu) -> list[int]:
        """The acceptance procedure, for our own messages, too. Returns the entities whose minAL has risen."""
        j = p.src
        assert p.seq == self.req[j]
        self.req[j] = p.seq + 1
        self.last_ack[j] = p.ack
        if j == self.me:
            self.sl[p.seq] = p
            self.limit[j] = p.seq + 1
            self.told_ack = p.ack
        else:
            self.limit[j] = p.seq + 1 + self.window
            self.hear_buf(j, (p.seq + 1, 0), p.buf)
        self.rrl[j].append(p)
        if self.service is Service.CO or j == self.me:
            self.occupy(p)
        return self.al.learn(j, p.ack)

    def hear_buf(self, j: int, statement: tuple[int, int], buf: int) -> None:
        """Set BUF[j], unless a later statement of E_j is known. `statement`: the next number of E_j at that time, and
        the number of its CO_STATE or CO_RET."""
        if statement <= self._heard[j]:
            return
        self._heard[j] = statement
        before = self.buf[j]
        self.buf[j] = buf
        if buf != before:
            self._others_least_buf = min(one for k, one in enumerate(self.buf) if k != self.me)

    def is_news(self, j: int, statement: tuple[int, int]) -> bool:
        """Whether this statement of E_j is later than all known ones."""
        return statement > self._heard[j]

    def occupy(self, p: Pdu) -> None:
        self.resident += 1
        self.used += p.size

    def vacate(self, p: Pdu) -> None:
        self.resident -= 1
        self.used -= p.size

    # Pre-acknowledging (section 3.4).

    def preacknowledge(self, risen: Iterable[int]) -> list[Pdu]:
        """The pre-acknowledgement procedure for the entities whose minAL has risen: RRL[j] -> PRL. For LO:
        messages that all have accepted, which no entity will ask for any more."""
        moved: list[Pdu] = []
        least = self.al.least
        for j in sorted(risen):
            log = self.rrl[j]
            while log and log[0].seq < least[j]:
                p = log.popleft()
                moved.append(p)
                if j == self.me:
                    del self.sl[p.seq]
                if self.service is Service.LO:
                    if j == self.me:
                        self.vacate(p)
                else:
                    self.pal.learn(j, p.ack)
                    self._insert(p)
        return moved

    def _insert(self, p: Pdu) -> None:
        """The CPI operation: insert p behind all messages that precede it, and in front of all that it precedes.

        The search goes from the end: the place is in front of the foremost message that p precedes; none of those is in
        front of a message that precedes p.
        """
        prl = self.prl
        if p.seq >= self._covered[p.src]:
            prl.append(p)
        else:
            place = at = len(prl)
            for q in reversed(prl):
                at -= 1
                if precedes(p, q):
                    place = at
                elif precedes(q, p):
                    break
            prl.insert(place, p)
        self._covered = list(map(max, self._covered, p.ack))

    # Acknowledging (section 3.5).

    def acknowledge(self) -> list[Pdu]:
        """The acknowledgement procedure: PRL -> ARL. Returns the messages to deliver, in order."""
        prl = self.prl
        least = self.pal.least
        stated = self.stated.least
        moved: list[Pdu] = []
        while prl and (prl[0].seq < least[prl[0].src] or prl[0].seq < stated[prl[0].src]):
            p = prl.popleft()
            self.vacate(p)
            moved.append(p)
        return moved

    # Ending.

    def speak(self) -> list[int]:
        """We send our REQ, so our own row is raised, too: we can conclude from it the same as its receivers.
        Returns the entities whose minAL has risen."""
        return self.al.learn(self.me, tuple(self.req))

    def tell(self) -> None:
        """We multicast our REQ and minAL."""
        self.told_ack = tuple(self.req)
        self.stated.learn(self.me, tuple(self.al.least))

    @property
    def is_told(self) -> bool:
        """Whether our multicasts have told our present REQ and minAL."""
        if self.told_ack != tuple(self.req):
            return False
        return self.service is Service.LO or self.stated.rows[self.me] == tuple(self.al.least)

    def is_wanting(self, j: int) -> bool:
        """Whether E_j has not said yet that it has accepted and pre-acknowledged all that we have. We do not wait for a
        statement that E_j cannot make because of another entity."""
        if self.al.rows[j] != tuple(self.req):
            return True
        return self.service is Service.CO and any(map(lt, self.stated.rows[j], self.al.least))

    @property
    def is_complete(self) -> bool:
        """Whether all are known to have everything, and have been told so of us: then none awaits another."""
        if self.al.least != self.req or not self.is_told:
            return False
        return self.service is Service.LO or self.stated.least == self.req


class Holding:
    """Messages that came before a message that they need: an earlier one of their source, or (strict) one that their
    ACK covers. Each waits for exactly one such message at a time.

    Section 3.3. Failure condition (1): p came from E_j with p.SEQ > REQ[j]. (2): q came with q.ACK[j] > REQ[j]. Either
    shows that messages of E_j up to some number exist; `known[j]` is the first number that need not exist.
    """

    __slots__ = ("_state", "_waiting", "buffered", "is_selective", "known")

    def __init__(self, state: CoState, recovery: Recovery = Recovery.SELECTIVE) -> None:
        self._state = state
        self.is_selective = recovery is Recovery.SELECTIVE
        self.buffered: list[dict[int, Pdu]] = [{} for _ in range(state.count)]
        self.known = [1] * state.count
        self._waiting: dict[tuple[int, int], list[Pdu]] = {}

    def __contains__(self, key: tuple[int, int]) -> bool:
        src, seq = key
        return seq in self.buffered[src]

    def learn(self, vector: Iterable[int]) -> None:
        """Messages below these numbers exist: failure condition (2)."""
        self.known = list(map(max, self.known, vector))

    def learn_one(self, src: int, beyond: int) -> None:
        """Failure condition (1)."""
        self.known[src] = max(self.known[src], beyond)

    def has_room(self, p: Pdu) -> bool:
        """Go-back-n: only for the next message of its source. It may still wait (strict) for one of another source, and
        those behind it with it: they are in order, so what is buffered of a source has no gap."""
        is_in_place = self.is_selective or p.seq == self._state.req[p.src] + len(self.buffered[p.src])
        return is_in_place and self._state.used + p.size <= self._state.buffer_bytes

    def put(self, p: Pdu, until: tuple[int, int]) -> None:
        """Keep `p` until message `until` (source, number) is accepted."""
        self.buffered[p.src][p.seq] = p
        self._waiting.setdefault(until, []).append(p)
        self._state.occupy(p)

    def release(self, accepted: Pdu) -> list[Pdu]:
        """The messages that waited for `accepted` and can be accepted now; the others wait for another message."""
        ready: list[Pdu] = []
        for p in self._waiting.pop((accepted.src, accepted.seq), ()):
            until = self._state.lacks(p)
            if until is None:
                del self.buffered[p.src][p.seq]
                self._state.vacate(p)
                ready.append(p)
            else:
                self._waiting.setdefault(until, []).append(p)
        return ready

    def lacking(self) -> list[int]:
        """The sources of which a message is known to exist that we have not accepted, ascending."""
        return [src for src, (known, req) in enumerate(zip(self.known, self._state.req, strict=True)) if known > req]

    def missing(self, src: int) -> Iterator[int]:
        """The numbers of that source that exist and have not come, ascending."""
        buffered = self.buffered[src]
        return (seq for seq in range(self._state.req[src], self.known[src]) if seq not in buffered)


def is_behind(vector: Sequence[int], other: Sequence[int]) -> bool:
    """Whether `vector` is less than `other` anywhere."""
    return any(map(lt, vector, other))
