"""ATOP and ATOP/MBS (paper 002): total orders by a lottery with weights that follow the rate of each member.

    order.py     ATOM: the deterministic merge of the members' streams, and the draws
    policy.py    AP: windows, weights and shares (formulae 1 and 2)
    core.py      ATOP: rules 1 to 6, the messages of a member and their times
    mbs.py       ATOP/MBS: donors, requesters and the broker

The paper's variables:

    paper                           here
    senderID                        Message.origin
    sndDistID                       AtopCore.distribution; the first word of each multicast
    ordDistID                       Order.current
    seqno                           Message.seq
    w[p]                            Weights, as counts: w[p] = weights[p] / sum of weights
    random number generator         RandomDraws
    T, sbT, dmT                     window_ns, sub_window_ns, dm_ns
    N_i(p), dmN_i(p), bkN_i(p)      Shares.count(owner=p, numbers)
    delta_i, Int(delta_i)           Shares.delta, in units of 1 / sum of weights; the result of Shares.close()
    dummy message                   ATOP_DUMMY; MBS_FILL under numbers of others
    BMG; CBMG                       MBS_BROKERED; Item.slot, at the donor's number
    bookkeeper, MBS                 Membership.first
"""

from node.protocols.atop.core import AtopCore, AtopParameters, AtopReport, WeightedOrderParameters
from node.protocols.atop.mbs import AtopMbsCore, AtopMbsParameters, MbsReport

__all__ = [
    "AtopCore",
    "AtopMbsCore",
    "AtopMbsParameters",
    "AtopParameters",
    "AtopReport",
    "MbsReport",
    "WeightedOrderParameters",
]
