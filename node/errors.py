"""Errors by the side that is wrong. A mistake of our own is an `assert`.

`LocalError`: the caller of this code is wrong (a configuration, an argument, a call at the wrong time); raise it, say
what to do. `RemoteError`: bytes from the network are wrong; the host drops the datagram, counts it, traces it, goes on.
No other exception is ever raised because of a peer's bytes.
"""

from __future__ import annotations

import enum


class DropReason(enum.IntEnum):
    """The reasons of a host or a core for refusing a datagram."""

    TRUNCATED = 1
    BAD_MAGIC = 2
    BAD_VERSION = 3
    BAD_LENGTH = 4
    UNKNOWN_KIND = 5
    OTHER_GROUP = 6
    UNKNOWN_MEMBER = 7
    OWN = 8
    STALE_INCARNATION = 9
    DUPLICATE = 10
    OUT_OF_WINDOW = 11
    MALFORMED = 12
    UNEXPECTED = 13


class LocalError(Exception):
    """Our caller is wrong. The text is one sentence for people that says how to correct it."""


class RemoteError(Exception):
    """A peer (or the writer of the bytes) is wrong: `reason` for the counters, `detail` for people."""

    def __init__(self, reason: DropReason, detail: str) -> None:
        super().__init__(f"{reason.name}: {detail}")
        self.reason = reason
        self.detail = detail


def check(is_right: bool, detail: str) -> None:
    """RemoteError MALFORMED unless bytes of a peer are right. `detail` as for RemoteError."""
    if not is_right:
        raise RemoteError(DropReason.MALFORMED, detail)
