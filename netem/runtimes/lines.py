"""Bytes from a node's standard output -> lines. Whoever reads them assumes nothing about who wrote them."""

from __future__ import annotations

from collections.abc import Iterator

LINE_BYTES_MAX = 64 * 1024
"""Longer lines are cut here; the rest up to the newline is dropped."""


class LineSplitter:
    """Feed it chunks as they come; it never holds more than LINE_BYTES_MAX and one chunk."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Every line that `chunk` completes, without its newline; bytes that are not UTF-8 become U+FFFD."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._keep(end)
            yield self._take()
        self._keep(rest)

    def close(self) -> Iterator[str]:
        """The last line, if the output ended without a newline."""
        if self._pending:
            yield self._take()

    def _keep(self, piece: bytes) -> None:
        self._pending += piece[: LINE_BYTES_MAX - len(self._pending)]

    def _take(self) -> str:
        line = self._pending.decode("utf-8", errors="replace")
        self._pending.clear()
        return line
