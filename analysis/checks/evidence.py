"""What a witness shows: the few steps of a run that make a violation one, fetched when there is a violation.

Each check of `analysis.checks.order` names one message. Here all its steps are looked up, then those of its
neighbours that the witness needs, and the pieces are put together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from analysis.checks.by_message import RunFacts, judged
from analysis.checks.incarnations import Life
from analysis.checks.properties import STANDING, Incarnation, Place, Property, Witness, order_witness
from analysis.checks.sequences import NO_MESSAGE, NOT_COMPARED, STEPS, Step, decode


class Seen(NamedTuple):
    """One judged step; columns as in sequences.STEPS."""

    life: Incarnation
    is_full: bool
    step: Step
    message: int
    record: int
    at_ns: int
    position: int
    predecessor: int | None
    """None: not compared."""
    previous: int
    is_repeat: bool
    is_out_of_order: bool


class Lookup:
    """Steps by message (sequences.encode), fetched in bulk."""

    def __init__(self, lives: Sequence[Life], facts: RunFacts) -> None:
        self._lives = lives
        self._facts = facts
        self._found: dict[int, list[Seen]] = defaultdict(list)
        self._known: set[int] = set()

    def fetch(self, wanted: Iterable[int]) -> None:
        """Look these messages up, all at once."""
        asked = sorted(set(wanted) - self._known)
        if not asked:
            return
        self._known |= set(asked)
        for life in self._lives:
            for row in _seen(life, self._facts, asked):
                self._found[row.message].append(row)

    def fetch_neighbours(self, unordered: int | None, disputed: int | None) -> None:
        """Of a message out of its origin's order and of one with two predecessors (None: none): look up what was
        delivered before them.
        """
        neighbours: set[int] = set()
        if unordered is not None:
            neighbours.add(self._out_of_order(unordered).previous)
        if disputed is not None:
            neighbours |= {row.predecessor for row in self._sides(disputed) if row.predecessor is not None}
        self.fetch(neighbours - {NO_MESSAGE})

    def witness(self, kind: Property, message: int) -> Witness:
        """What makes this message violate the property."""
        tellers: dict[Property, Callable[[int], Witness]] = {
            Property.VALIDITY: self._validity,
            Property.AGREEMENT: lambda message: self._agreement(message, uniform=False),
            Property.UNIFORM_AGREEMENT: lambda message: self._agreement(message, uniform=True),
            Property.INTEGRITY: self._integrity,
            Property.FIFO: self._fifo,
            Property.TOTAL_ORDER: self._total_order,
        }
        return tellers[kind](message)

    def causal_witness(self, life: Incarnation, cause: int, message: int) -> Witness:
        """A member that delivers `message` without having delivered `cause`."""
        places = (self._place(life, cause), self._place(life, message))
        return Witness(what="delivered before its cause", places=places)

    def _validity(self, message: int) -> Witness:
        identity = decode(message)
        home = Incarnation(identity.origin, identity.incarnation)
        return Witness(what="its own submission is not delivered", places=(Place(home, identity, None, None),))

    def _agreement(self, message: int, *, uniform: bool) -> Witness:
        delivered = [row for row in self._deliveries(message) if uniform or row.is_full]
        if not delivered:
            rows = [row for row in self._found[message] if row.step == Step.STANDING]
            return Witness(what=STANDING, places=(self._place(min(rows, key=_when).life, message),))
        missing = next(place for life in self._facts.full if (place := self._place(life, message)).position is None)
        return Witness(what="not everybody delivers it", places=(_place(delivered[0]), missing))

    def _integrity(self, message: int) -> Witness:
        rows = sorted(self._found[message], key=_when)
        submit_ns = min((row.at_ns for row in rows if row.step == Step.SUBMISSION), default=None)
        found: list[tuple[Seen, str]] = []
        for row in rows:
            if row.step == Step.BROKEN_PROMISE:
                found.append((row, "undone although its delivery was promised"))
            elif row.step == Step.DELIVERY and row.is_repeat:
                found.append((row, "delivered twice"))
            elif row.step == Step.DELIVERY and submit_ns is None:
                found.append((row, "delivered but never submitted"))
            elif row.step == Step.DELIVERY and submit_ns is not None and row.at_ns < submit_ns:
                found.append((row, "delivered before it was submitted"))
        row, what = found[0]
        return Witness(what=what, places=(_place(row),))

    def _fifo(self, message: int) -> Witness:
        row = self._out_of_order(message)
        places = [_place(row)]
        if row.previous != NO_MESSAGE:
            places.insert(0, self._place(row.life, row.previous))
        return Witness(what="delivered out of its origin's order", places=tuple(places))

    def _total_order(self, message: int) -> Witness:
        one, other = self._sides(message)
        sides = [(row.life, None if row.predecessor == NO_MESSAGE else row.predecessor) for row in (one, other)]
        codes = {decode(code): code for _, code in sides if code is not None} | {decode(message): message}
        (here, x), (there, y) = sides
        return order_witness(
            decode(message),
            (here, None if x is None else decode(x)),
            (there, None if y is None else decode(y)),
            lambda life, identity: self._place(life, codes[identity]),
        )

    def _deliveries(self, message: int) -> list[Seen]:
        """First deliveries, in order of time."""
        rows = [row for row in self._found[message] if row.step == Step.DELIVERY and not row.is_repeat]
        return sorted(rows, key=_when)

    def _out_of_order(self, message: int) -> Seen:
        return next(row for row in self._deliveries(message) if row.is_out_of_order)

    def _sides(self, message: int) -> tuple[Seen, Seen]:
        """Two deliveries of one message with different predecessors."""
        compared = [row for row in self._deliveries(message) if row.predecessor is not None]
        other = next(row for row in compared if row.predecessor != compared[0].predecessor)
        return compared[0], other

    def _place(self, life: Incarnation, message: int) -> Place:
        for row in self._deliveries(message):
            if row.life == life:
                return _place(row)
        return Place(life, decode(message), None, None)


def _seen(life: Life, facts: RunFacts, asked: Sequence[int]) -> Iterator[Seen]:
    """Judged steps of a life about these messages."""
    columns = life.columns(*STEPS.names)
    kinds = (Step.SUBMISSION, Step.DELIVERY, Step.STANDING, Step.BROKEN_PROMISE)
    has_order = life.name not in facts.over
    for kind, rows in zip(kinds, judged(columns, life.name, facts), strict=True):
        for row in rows[np.isin(columns["message"][rows], asked)].tolist():
            told = {name: columns[name][row].item() for name in Seen._fields if name in columns}
            compared = has_order and kind is Step.DELIVERY and told["predecessor"] != NOT_COMPARED
            told |= {"step": kind, "predecessor": told["predecessor"] if compared else None}
            yield Seen(life=life.name, is_full=life.name in facts.full, **told)


def _when(row: Seen) -> tuple[int, Incarnation, int]:
    return row.at_ns, row.life, row.record


def _place(row: Seen) -> Place:
    return Place(row.life, decode(row.message), row.position, row.at_ns)
