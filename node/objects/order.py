"""The delivery rule: each object of a sub-network gets its calls in the order of their keys.

Every object has a queue of the calls that cover it and that it has not got, by key: the proposed timestamp until the
final one is known, which is never less. A call may go out when its key is final and it is the first in the queue of
each of its objects. That is the rule "no call before it that is not final, or waits itself, shares an object with it",
without walking along calls that have no object in common: a call in doubt holds up its own objects alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from node.objects.addresses import Reference
from node.objects.entries import CallId, Key


class Order:
    """The queues of the objects of one sub-network."""

    def __init__(self) -> None:
        self._queues: dict[Reference, list[Key]] = {}
        self._finals: dict[CallId, tuple[Key, tuple[Reference, ...]]] = {}

    def add(self, key: Key, objects: Iterable[Reference]) -> None:
        """A call that is not final."""
        for one in objects:
            insort(self._queues.setdefault(one, []), key)

    def finish(self, key: Key, final: Key, objects: tuple[Reference, ...]) -> list[CallId]:
        """It is final now, at a key that is not less. Returns who may go out because of it, in the order of keys."""
        assert key <= final, "a final timestamp is at least every proposal"
        self._finals[final.id] = (final, objects)
        touched = {final.id: final}
        for one in objects:
            self._remove(one, key, touched)
            insort(self._queues.setdefault(one, []), final)
            self._first(one, touched)
        return self._take(touched)

    def drop(self, key: Key, objects: Iterable[Reference]) -> list[CallId]:
        """Nothing comes of this call, which is not final. Returns who may go out because of it."""
        touched: dict[CallId, Key] = {}
        for one in objects:
            self._remove(one, key, touched)
        return self._take(touched)

    def forget(self, objects: Iterable[Reference]) -> list[CallId]:
        """These objects exist no more; nothing waits because of them. Returns who may go out because of it."""
        gone = frozenset(objects)
        touched: dict[CallId, Key] = {}
        for one in sorted(gone):
            for key in self._queues.pop(one, ()):
                if key.id in self._finals:
                    final, rest = self._finals[key.id]
                    self._finals[key.id] = (final, tuple(each for each in rest if each not in gone))
                    touched[key.id] = final
        return self._take(touched)

    def _take(self, touched: dict[CallId, Key]) -> list[CallId]:
        """Whoever may go out among the `touched`, and whoever may go out because of them; least key first."""
        gone: list[CallId] = []
        while touched:
            name = min(touched, key=touched.__getitem__)
            key = touched.pop(name)
            if name in self._finals and all(self._queues[one][0] == key for one in self._finals[name][1]):
                for one in self._finals.pop(name)[1]:
                    self._remove(one, key, touched)
                gone.append(name)
        return gone

    def _remove(self, one: Reference, key: Key, touched: dict[CallId, Key]) -> None:
        queue = self._queues[one]
        place = bisect_left(queue, key)
        assert queue[place] == key, "a call waits in the queue of each of its objects"
        del queue[place]
        if not queue:
            del self._queues[one]
        elif place == 0:
            self._first(one, touched)

    def _first(self, one: Reference, touched: dict[CallId, Key]) -> None:
        key = self._queues[one][0]
        if key.id in self._finals:
            touched[key.id] = key
