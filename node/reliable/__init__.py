"""Reliable FIFO multicast and unicast among the members of one view.

`core` the state machine; `stream` both ends of a multicast stream; `channel` both ends of a unicast channel; `rtt`
time-outs, questions and timers; `codec` the words of the messages; `parameters` times and bounds.
"""

from node.reliable.codec import view_of
from node.reliable.core import MAX_CUT_AHEAD, Phase, ReliableCore
from node.reliable.parameters import ReliableParameters

__all__ = ["MAX_CUT_AHEAD", "Phase", "ReliableCore", "ReliableParameters", "view_of"]
