"""A mistake of the user: its place and what is allowed, in one sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class InputError(Exception):
    """The user's input cannot be used. `str()` is one line: `lossy.yaml:12: partitions.p1: unknown key …`.

    `also` holds further, independent mistakes in the same input, in the order of the file.
    """

    def __init__(
        self,
        sentence: str,
        *,
        source: str | None = None,
        line: int | None = None,
        key: str | None = None,
        also: Sequence[InputError] = (),
    ) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.source = source
        self.line = line
        self.key = key
        self.also = tuple(also)

    def __str__(self) -> str:
        place = self.source or ""
        if place and self.line is not None:
            place += f":{self.line}"
        return ": ".join(part for part in (place, self.key, self.sentence) if part)


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """`; did you mean rate?`, or nothing when no allowed name is close."""
    close = difflib.get_close_matches(given[:64], list(allowed), n=1)
    return f"; did you mean {close[0]}?" if close else ""
