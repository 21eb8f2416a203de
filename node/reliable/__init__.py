"""Reliable FIFO multicast and unicast among the members of one view.

`core` the state machine; `stream` both ends of a multicast stream; `channel` both ends of a unicast channel; `codec`
the words of the messages. Time-outs, timers and requests are those of all transports (node/transport.py).
"""

from node.reliable.codec import view_of
from node.reliable.core import MAX_CUT_AHEAD, Phase, ReliableCore
from node.reliable.parameters import ReliableParameters

__all__ = ["MAX_CUT_AHEAD", "Phase", "ReliableCore", "ReliableParameters", "view_of"]
