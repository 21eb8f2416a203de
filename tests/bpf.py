"""An interpreter of the classic BPF instructions that filters are made of."""

from __future__ import annotations

from collections.abc import Sequence

IFINDEX = 0xFFFFF008
"""Where a socket's filter reads the interface index (SKF_AD_OFF + SKF_AD_IFINDEX)."""


def run(program: Sequence[tuple[int, int, int, int]], frame: bytes, *, ifindex: int = 0) -> int:
    """Return value of the program for a frame, as in the kernel; a load beyond the end of the frame returns 0."""
    accumulator = place = 0
    while True:
        code, if_true, if_false, value = program[place]
        place += 1
        match code:
            case 0x06:
                return value
            case 0x05:
                place += value
            case 0x20 | 0x28 if value == IFINDEX:
                accumulator = ifindex
            case 0x20 | 0x28:
                end = value + (4 if code == 0x20 else 2)
                if end > len(frame):
                    return 0
                accumulator = int.from_bytes(frame[value:end], "big")
            case _:
                holds = {0x15: accumulator == value, 0x25: accumulator > value, 0x35: accumulator >= value}[code]
                place += if_true if holds else if_false
