"""The log as one member of Amoeba has it: who takes part, what waits to be delivered, who must have stored it.

All who take part put the same entries into it in the same order, so all of this is the same for all at the same entry.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from node.effects import Deliver
from node.protocols.amoeba_words import Life, Standing, Welcome
from node.wire import Kind


@dataclass(slots=True, kw_only=True)
class Item:
    """An entry that is complete and not delivered. `resilience`: how many others must have stored it; 0: it is not
    tentative. `author`: the sequencer that gave the number.
    """

    index: int
    author: Life
    delivery: Deliver
    resilience: int

    @property
    def life(self) -> Life:
        """Whose message it is, or about whom."""
        return self.delivery.origin, self.delivery.incarnation

    @property
    def is_welcome(self) -> bool:
        return self.delivery.inner is Kind.RELIABLE_JOINED


@dataclass(slots=True, kw_only=True)
class Log:
    """`sequencer` writes it in this `epoch`; `index` is the last number that is complete here."""

    sequencer: Life
    lives: dict[Life, Standing]
    """Who takes part, after the last complete entry."""
    epoch: int = 1
    index: int = 0
    accepted: int = 0
    """The sequencer has said that all up to this number is stored as it must be."""
    waiting: deque[Item] = field(default_factory=deque)
    walked: set[Life] = field(default_factory=set)
    """Sequencers that have ended, and candidates that ended before it was their turn, while the log does not say so."""

    @classmethod
    def begun(cls, welcome: Welcome, author: Life, index: int) -> Log:
        """As a joiner has it before its WELCOME, the entry `index`."""
        return cls(
            sequencer=author, lives=dict(welcome.lives), epoch=welcome.epoch, index=index - 1, accepted=index - 1
        )

    @property
    def is_blocked(self) -> bool:
        """Whether the first that waits must be stored first."""
        return bool(self.waiting) and self._is_tentative(self.waiting[0])

    def append(self, delivery: Deliver, resilience: int) -> None:
        """The next entry, complete. `resilience` as wanted: it becomes what there are others to fulfil."""
        self.index += 1
        item = Item(index=self.index, author=self.sequencer, delivery=delivery, resilience=resilience)
        if resilience:
            item.resilience = min(resilience, len(self._candidates(item.index)))
        self.waiting.append(item)

    def storers(self, item: Item) -> list[Life]:
        """Who must have stored it: the lowest that took part when it was numbered and still do, the sequencer apart."""
        return self._candidates(item.index)[: item.resilience]

    def take(self) -> list[Item]:
        """All that is to be delivered now."""
        taken = []
        while self.waiting and not self.is_blocked:
            taken.append(self.waiting.popleft())
        return taken

    def end_epoch(self) -> list[Life]:
        """The sequencer has ended, and all that it has numbered is here, or nowhere. All survivors hold what is
        tentative: it counts. Only a joiner whose WELCOME is tentative does not know that, and has not joined: those
        are returned.
        """
        undone = [item for item in self.waiting if item.is_welcome and self._is_tentative(item)]
        for item in undone:
            self.waiting.remove(item)
            self.lives.pop(item.life, None)
        for item in self.waiting:
            item.resilience = 0
        self.walked.add(self.sequencer)
        return [item.life for item in undone]

    def begin_epoch(self) -> None:
        """The lowest that takes part is the next sequencer."""
        self.sequencer = min(life for life in self.lives if life not in self.walked)
        self.epoch += 1

    def _is_tentative(self, item: Item) -> bool:
        return item.resilience > 0 and item.index > self.accepted

    def _candidates(self, index: int) -> list[Life]:
        return sorted(
            life for life, standing in self.lives.items() if standing.joined < index and life != self.sequencer
        )
