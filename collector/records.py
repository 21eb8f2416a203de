"""The contract between capture and analysis: how a capture names its ports, and what one frame becomes.

A capture is pcapng: one interface block per switch port, `if_name` = the node's name (`p1/n3`), `if_tsresol` 9. Each frame's
flags give its direction *seen from the switch port*: INBOUND (1) is what the node put on the wire, before any impairment;
OUTBOUND (2) is what reaches the node, after it. The section header's comment is one JSON object: run id, group, clock.
"""

from __future__ import annotations

import enum


class PortDirection(enum.IntEnum):
    """Values of the pcapng packet flags' direction bits."""

    INBOUND = 1
    OUTBOUND = 2


ETHERNET_LINK_TYPE = 1
NANOSECOND_RESOLUTION = 9
INDEX_SUFFIX = ".index"
"""The index side-car of `capture.pcapng` is `capture.pcapng.index`."""
