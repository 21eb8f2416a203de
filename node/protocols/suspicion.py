"""Whom we wait for, whom to ask, and who has been silent for so long that something must be wrong.

Silence counts only while we wait for somebody, and in ticks of ours: a pause of ours adds one tick to everybody's
silence, not its whole length. A doubt is a suspicion that somebody has, we or another; one that others have makes us
ask at every tick and look for ourselves for a quarter of the usual time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class Patience:
    """Paces questions about one thing: the first after `first_ns` without progress, then with pauses that double."""

    __slots__ = ("_first_ns", "_gap_ns", "_most_ns", "_next_ns", "_progress", "_waited_ns", "silence_ns")

    def __init__(self, *, first_ns: int, most_ns: int, progress: int = 0) -> None:
        self._first_ns = first_ns
        self._most_ns = most_ns
        self.silence_ns = 0
        self.restart(progress)

    def restart(self, progress: int = 0) -> None:
        """Something moved: no reason to ask for a while."""
        self._progress = progress
        self._waited_ns = 0
        self._gap_ns = self._next_ns = self._first_ns

    def is_due(self, elapsed_ns: int, progress: int = 0) -> bool:
        """Another `elapsed_ns` have passed: is it time to ask (again)?"""
        if progress != self._progress:
            self.restart(progress)
            return False
        self._waited_ns += elapsed_ns
        if self._waited_ns < self._next_ns:
            return False
        self._gap_ns = min(2 * self._gap_ns, self._most_ns)
        self._next_ns = self._waited_ns + self._gap_ns
        return True


class Suspicion:
    """Of one member about all others."""

    __slots__ = ("_first_ns", "_heard", "_me", "_most_ns", "_patience", "_suspect_after_ns", "doubts")

    def __init__(self, *, me: int, first_ns: int, most_ns: int, suspect_after_ns: int) -> None:
        self._me = me
        self._first_ns = first_ns
        self._most_ns = most_ns
        self._suspect_after_ns = suspect_after_ns
        self._patience: dict[int, Patience] = {}
        self._heard: set[int] = set()
        self.doubts: dict[int, set[int]] = {}
        """Per member: who suspects it, ourselves included."""

    def hear(self, member: int) -> bool:
        """It speaks: whoever suspects it is wrong, and may say so again if he insists. True when we did: all must hear
        of it."""
        self._heard.add(member)
        doubters = self.doubts.get(member)
        if not doubters:
            return False
        is_ours = self._me in doubters
        doubters.clear()
        return is_ours

    def forget(self, member: int) -> None:
        """Its life is over: nobody waits for it, and its opinion is void."""
        self._patience.pop(member, None)
        self.doubts.pop(member, None)
        for doubters in self.doubts.values():
            doubters.discard(member)

    def rest(self) -> None:
        """We wait for nobody."""
        self._patience.clear()

    def tick(self, awaited: Mapping[int, int], elapsed_ns: int) -> tuple[list[int], list[int]]:
        """`awaited`: per member that we wait for, a number that changes with every progress it makes.

        Returns whom to ask now, and whom we suspect from now on.
        """
        self._patience = {member: self._patience[member] for member in awaited if member in self._patience}
        questions: list[int] = []
        suspects: list[int] = []
        for member, progress in sorted(awaited.items()):
            patience = self._patience.get(member)
            if patience is None:
                patience = Patience(first_ns=self._first_ns, most_ns=self._most_ns, progress=progress)
                self._patience[member] = patience
            if patience.is_due(elapsed_ns, progress) or member in self.doubts:
                questions.append(member)
            patience.silence_ns = 0 if member in self._heard else patience.silence_ns + elapsed_ns
            if self._judge(member, patience.silence_ns):
                suspects.append(member)
        self._heard.clear()
        return questions, suspects

    def take(self, named: Iterable[int], source: int) -> None:
        """`source` suspects those named, and nobody else. Whom we have heard since our last tick is no suspect for
        us."""
        suspects = set(named) - self._heard
        for member, doubters in self.doubts.items():
            if member not in suspects:
                doubters.discard(source)
        for member in sorted(suspects):
            self.doubts.setdefault(member, set()).add(source)

    def suspects(self) -> list[int]:
        """Whom we suspect ourselves."""
        return sorted(member for member, doubters in self.doubts.items() if self._me in doubters)

    def convicted(self, live: tuple[int, ...]) -> list[int]:
        """Whom more than half of the others suspect: all live peers but itself, and we. Nobody goes by hearsay
        alone."""
        judges = {self._me, *live}
        return [member for member in self.suspects() if 2 * len(self.doubts[member] & judges) > len(judges) - 1]

    def _judge(self, member: int, silence_ns: int) -> bool:
        """True when our suspicion is new."""
        doubters = self.doubts.get(member, set())
        limit_ns = self._suspect_after_ns // 4 if doubters - {self._me} else self._suspect_after_ns
        if silence_ns >= limit_ns and self._me not in doubters:
            self.doubts[member] = doubters | {self._me}
            return True
        if silence_ns == 0:
            self.doubts.pop(member, None)
        return False
