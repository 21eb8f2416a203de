"""What a witness shows: the few steps of a run that make a violation one, fetched when there is a violation.

Each check of `analysis.order` names one message. Here all its steps are looked up, then those of its neighbours that
the witness needs, and the pieces are put together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  (the names that everybody knows)

from analysis.properties import STANDING, Incarnation, Place, Property, Witness, order_witness
from analysis.sequences import LIFE, NO_MESSAGE, Step, decode

Key = tuple[int, int]
"""Run and message (sequences.encode)."""


class Lookup:
    """Steps by run and message, fetched in bulk. `full`: the full members of each run."""

    def __init__(self, judged: DataFrame, full: Mapping[int, Sequence[Incarnation]]) -> None:
        self._judged = judged
        self._full = full
        self._found: dict[Key, list[Row]] = defaultdict(list)
        self._known: set[Key] = set()

    def fetch(self, wanted: Iterable[Key]) -> None:
        """Look these messages up, all in one query."""
        asked = sorted(set(wanted) - self._known)
        if not asked:
            return
        self._known |= set(asked)
        keys = self._judged.sparkSession.createDataFrame(asked, "run int, message long")
        found = self._judged.join(F.broadcast(keys), on=["run", "message"], how="inner")
        columns = ("step", "message", "record", "at_ns", "position", "predecessor", "previous")
        flags = ("is_repeat", "is_out_of_order", "is_full")
        for row in found.select(*LIFE, *columns, *flags).collect():
            self._found[row["run"], row["message"]].append(row)

    def fetch_neighbours(self, wanted: Mapping[int, tuple[int | None, int | None]]) -> None:
        """For each run a message out of its origin's order and one with two predecessors (None: none): look up what was
        delivered before them.
        """
        neighbours: set[Key] = set()
        for run, (unordered, disputed) in wanted.items():
            if unordered is not None:
                neighbours.add((run, self._out_of_order(run, unordered)["previous"]))
            if disputed is not None:
                neighbours |= {(run, row["predecessor"]) for row in self._sides(run, disputed)}
        self.fetch(key for key in neighbours if key[1] != NO_MESSAGE)

    def witness(self, kind: Property, run: int, message: int) -> Witness:
        """What makes this message violate the property."""
        tellers: dict[Property, Callable[[int, int], Witness]] = {
            Property.VALIDITY: lambda _, message: self._validity(message),
            Property.AGREEMENT: lambda run, message: self._agreement(run, message, uniform=False),
            Property.UNIFORM_AGREEMENT: lambda run, message: self._agreement(run, message, uniform=True),
            Property.INTEGRITY: self._integrity,
            Property.FIFO: self._fifo,
            Property.TOTAL_ORDER: self._total_order,
        }
        return tellers[kind](run, message)

    def causal_witness(self, run: int, life: Incarnation, cause: int, message: int) -> Witness:
        """A member that delivers `message` without having delivered `cause`."""
        places = (self._place(run, life, cause), self._place(run, life, message))
        return Witness(what="delivered before its cause", places=places)

    def _validity(self, message: int) -> Witness:
        identity = decode(message)
        home = Incarnation(identity.origin, identity.incarnation)
        return Witness(what="its own submission is not delivered", places=(Place(home, identity, None, None),))

    def _agreement(self, run: int, message: int, *, uniform: bool) -> Witness:
        delivered = [row for row in self._deliveries(run, message) if uniform or row["is_full"]]
        if not delivered:
            rows = [row for row in self._found[run, message] if row["step"] == Step.STANDING]
            return Witness(what=STANDING, places=(self._place(run, _life(min(rows, key=_when)), message),))
        missing = next(place for life in self._full[run] if (place := self._place(run, life, message)).position is None)
        return Witness(what="not everybody delivers it", places=(_place(delivered[0]), missing))

    def _integrity(self, run: int, message: int) -> Witness:
        rows = sorted(self._found[run, message], key=_when)
        submit_ns = min((row["at_ns"] for row in rows if row["step"] == Step.SUBMISSION), default=None)
        found: list[tuple[Row, str]] = []
        for row in rows:
            if row["step"] == Step.BROKEN_PROMISE:
                found.append((row, "undone although its delivery was promised"))
            elif row["step"] == Step.DELIVERY and row["is_repeat"]:
                found.append((row, "delivered twice"))
            elif row["step"] == Step.DELIVERY and submit_ns is None:
                found.append((row, "delivered but never submitted"))
            elif row["step"] == Step.DELIVERY and row["at_ns"] < submit_ns:
                found.append((row, "delivered before it was submitted"))
        row, what = found[0]
        return Witness(what=what, places=(_place(row),))

    def _fifo(self, run: int, message: int) -> Witness:
        row = self._out_of_order(run, message)
        places = [_place(row)]
        if row["previous"] != NO_MESSAGE:
            places.insert(0, self._place(run, _life(row), row["previous"]))
        return Witness(what="delivered out of its origin's order", places=tuple(places))

    def _total_order(self, run: int, message: int) -> Witness:
        one, other = self._sides(run, message)
        sides = [(_life(row), None if row["predecessor"] == NO_MESSAGE else row["predecessor"]) for row in (one, other)]
        codes = {decode(code): code for _, code in sides if code is not None} | {decode(message): message}
        (here, x), (there, y) = sides
        return order_witness(
            decode(message),
            (here, None if x is None else decode(x)),
            (there, None if y is None else decode(y)),
            lambda life, identity: self._place(run, life, codes[identity]),
        )

    def _deliveries(self, run: int, message: int) -> list[Row]:
        """First deliveries, in order of time."""
        rows = [row for row in self._found[run, message] if row["step"] == Step.DELIVERY and not row["is_repeat"]]
        return sorted(rows, key=_when)

    def _out_of_order(self, run: int, message: int) -> Row:
        return next(row for row in self._deliveries(run, message) if row["is_out_of_order"])

    def _sides(self, run: int, message: int) -> tuple[Row, Row]:
        """Two deliveries of one message with different predecessors."""
        compared = [row for row in self._deliveries(run, message) if row["predecessor"] is not None]
        other = next(row for row in compared if row["predecessor"] != compared[0]["predecessor"])
        return compared[0], other

    def _place(self, run: int, life: Incarnation, message: int) -> Place:
        for row in self._deliveries(run, message):
            if _life(row) == life:
                return _place(row)
        return Place(life, decode(message), None, None)


def _when(row: Row) -> tuple[int, Incarnation, int]:
    return row["at_ns"], _life(row), row["record"]


def _life(row: Row) -> Incarnation:
    return Incarnation(row["member"], row["member_incarnation"])


def _place(row: Row) -> Place:
    return Place(_life(row), decode(row["message"]), row["position"], row["at_ns"])
