"""One colour for each protocol, in every picture of every report: places in the palette of report.css."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

COLOURS: Final[Mapping[str, int]] = {
    "abcast": 0,
    "timewarp": 1,
    "sequencer": 2,
    "atop": 4,
    "allack": 5,
    "lamport": 7,
}
"""Of the protocols that can be candidates; 3 is that of roll-backs."""

OTHER_COLOUR: Final = 6


def colour_of(protocol: str) -> str:
    """Class of the protocol's colour; all that have none of their own share one."""
    return f"c{COLOURS.get(protocol.lower(), OTHER_COLOUR)}"
