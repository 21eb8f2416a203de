"""The parameters of object groups (paper 004). Times in ns, shares per thousand."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from node.objects.addresses import MAX_ADDRESSED, MAX_SPACES, OBJECTS_IN_SPACE
from node.parameters import require, require_one_of, require_range
from node.protocols.amoeba import AmoebaParameters
from node.reliable.parameters import ReliableParameters

MILLISECOND = 1_000_000
SECOND = 1_000 * MILLISECOND
LOAD = "load"
"""The program that a node runs unless told otherwise: the workload's requests become calls (LoadParameters)."""
MOST_PROCESSES = 10
"""Most address spaces of a machine that are processes: each takes 20 MB, and a container has 256 for all."""
LOCALITIES = ("space", "machine", "network", "networks")
"""The places of a program's objects: one address space, one machine, one sub-network, several (paper 004, figures 9 to
12)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadParameters:
    """The distribution of the calls of the program `load`: each request of the workload becomes one call."""

    atomic_permille: int = 150
    unordered_permille: int = 50
    direct_permille: int = 150
    """To one object, only in the order of the sender's messages."""
    listed_permille: int = 400
    """To one of the lists that all machines know; the rest, without `grouped_permille`, are for objects drawn anew."""
    grouped_permille: int = 250
    """To the replicated group of a sub-network."""
    changes_permille: int = 100
    """The share of those that join or leave the group instead of calling it."""
    lists: int = 6
    """Number of lists, drawn once, from the seed of the experiment, so that many calls have the same members."""
    members: int = 4
    """Most objects in a list."""
    space_weight: int = 1
    """Weight of calls with all objects in the caller's address space ..."""
    machine_weight: int = 1
    """... on the caller's machine ..."""
    network_weight: int = 2
    """... in the caller's sub-network ..."""
    networks_weight: int = 2
    """... or anywhere."""

    def __post_init__(self) -> None:
        for name in (one.name for one in fields(self) if one.name.endswith("_permille")):
            require_range(name, getattr(self, name), 0, 1000)
        shares = self.atomic_permille + self.unordered_permille + self.direct_permille
        require(shares <= 1000, f"atomic, unordered and direct calls are {shares} of 1000")
        whom = self.listed_permille + self.grouped_permille
        require(whom <= 1000, f"calls to lists and to groups are {whom} of 1000")
        require_range("lists", self.lists, 1, 1000)
        require(1 <= self.members <= MAX_ADDRESSED, f"members must lie between 1 and {MAX_ADDRESSED}")
        weights = (self.space_weight, self.machine_weight, self.network_weight, self.networks_weight)
        require(all(0 <= weight <= 1000 for weight in weights), "weights must lie between 0 and 1000")
        require(any(weights), "one of the weights must be more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramParameters:
    """Options of programs, which each program interprets itself."""

    members: int = 10
    """Objects of the group."""
    locality: str = "network"
    rounds: int = 20
    """Repetitions of the program's work."""
    pause_ns: int = 0
    """Pause between two rounds."""
    size_bytes: int = 64
    """Size of an argument."""

    def __post_init__(self) -> None:
        require(1 <= self.members <= MAX_ADDRESSED, f"members must lie between 1 and {MAX_ADDRESSED}")
        require_one_of("locality", self.locality, LOCALITIES)
        require_range("rounds", self.rounds, 1, 1_000_000)
        require(0 <= self.pause_ns <= 2**62, f"pause_ns must not be negative, not {self.pause_ns}")
        require_range("size_bytes", self.size_bytes, 0, 32_768)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogParameters(AmoebaParameters):
    """Parameters of the log of a sub-network."""

    resilience: int = 0
    """Resilience of calls to a list. Votes, and entries on which other sub-networks act, ask for 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsParameters:
    """Parameters of a machine with its address spaces, of the log of its sub-network, and of its program."""

    spaces: int = 2
    """Address spaces of each machine."""
    processes: bool = False
    """Whether each address space is a process of its own, on a real network. The simulator, which has only one process,
    ignores it."""
    objects_per_space: int = 2
    """Objects that the program `load` makes in each space."""
    outstanding: int = 64
    """Most calls of one machine under way; then its application waits."""
    patience_ns: int = 10 * SECOND
    """Time that a call waits for a sub-network that does not answer; then it goes on without it, or is aborted."""
    vote_ns: int = 5 * SECOND
    """Time that a sub-network waits for the votes of its machines on an atomic call: a silent one votes no."""
    retry_ns: int = 50 * MILLISECOND
    """First pause before a message to another sub-network, or a vote, is repeated; it doubles ..."""
    retry_most_ns: int = 800 * MILLISECOND
    """... up to this."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)
    """The reliable layer below the log, and the direct messages."""
    amoeba: LogParameters = field(default_factory=LogParameters)
    """The log; its own block `reliable` must not be set."""
    program: str = LOAD
    load: LoadParameters = field(default_factory=LoadParameters)
    options: ProgramParameters = field(default_factory=ProgramParameters)

    def __post_init__(self) -> None:
        require_range("spaces", self.spaces, 1, MAX_SPACES)
        require(
            not self.processes or self.spaces <= MOST_PROCESSES,
            f"as processes, spaces must lie between 1 and {MOST_PROCESSES}, not {self.spaces}",
        )
        require_range("objects_per_space", self.objects_per_space, 1, OBJECTS_IN_SPACE - 1)
        require_range("outstanding", self.outstanding, 1, 4096)
        require(MILLISECOND <= self.retry_ns <= self.retry_most_ns, "retry_ns and retry_most_ns must ascend from 1 ms")
        require(
            self.retry_most_ns <= self.vote_ns <= self.patience_ns <= 2**62,
            "retry_most_ns, vote_ns and patience_ns must ascend",
        )
        require(self.amoeba.reliable == ReliableParameters(), "the reliable layer has its block beside amoeba's")
        require(bool(self.program), "program must name one")
