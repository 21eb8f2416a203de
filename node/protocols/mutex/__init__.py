"""Mutual exclusion: two algorithms by logical time, one by quorums, and a central scheduler.

section.py           common to all: the critical section, parameters, timestamps, reports
lamport.py           Lamport 1978: a queue at every member; request, acknowledgement, release
ricart_agrawala.py   Ricart and Agrawala 1981: request, reply
maekawa.py           Maekawa 1985: the votes of a quorum of about 2 sqrt(n) members
central.py           the scheduler that Lamport 1978 rejects: it grants requests in the order of their receipt
"""

from node.core import MakeCore
from node.protocols.mutex.central import CentralCore
from node.protocols.mutex.lamport import MutexCore
from node.protocols.mutex.maekawa import MaekawaCore
from node.protocols.mutex.ricart_agrawala import RicartAgrawalaCore
from node.protocols.mutex.section import HOLD, Algorithm, Kept, MutexParameters, Phase, Request

__all__ = [
    "HOLD",
    "Algorithm",
    "CentralCore",
    "Kept",
    "MaekawaCore",
    "MutexCore",
    "MutexParameters",
    "Phase",
    "Request",
    "RicartAgrawalaCore",
    "begin",
]


def begin(parameters: MutexParameters) -> MakeCore:
    """The function that makes the core of each view."""
    if parameters.algorithm == Algorithm.LAMPORT:
        return lambda us, _, memory: MutexCore(membership=us, parameters=parameters, memory=memory)
    kept = Kept()
    if parameters.algorithm == Algorithm.CENTRAL:
        return lambda us, _, memory: CentralCore(membership=us, parameters=parameters, kept=kept, memory=memory)
    if parameters.algorithm == Algorithm.MAEKAWA:
        return lambda us, _, memory: MaekawaCore(membership=us, parameters=parameters, kept=kept, memory=memory)
    return lambda us, _, memory: RicartAgrawalaCore(membership=us, parameters=parameters, kept=kept, memory=memory)
