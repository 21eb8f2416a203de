"""What a program is, and what it is told about its place."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias

from node.core import Membership
from node.effects import Report
from node.objects.api.space import Space
from node.objects.parameters import ProgramParameters
from node.trace import CallReport, Timed

OBJECTS_BITS = 12
"""Of the number of objects in a report of TIMED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where a program runs: once in each address space of each machine. `space`: which of the machine's, from 0."""

    membership: Membership
    space: int
    spaces: int
    """Of each machine."""
    options: ProgramParameters
    report: Callable[[Report], None]
    """Put something into the run's trace."""
    now_ns: Callable[[], int]
    """ns since the start of the load."""

    def report_time(self, what: Timed, objects: int, took_ns: int) -> None:
        """How long something took that had to do with so many objects."""
        self.report(Report(code=CallReport.TIMED, member=what << OBJECTS_BITS | objects, value=took_ns))

    @property
    def networks(self) -> tuple[tuple[int, ...], ...]:
        """The machines of each sub-network."""
        return self.membership.partitions or (self.membership.members,)


Main: TypeAlias = Callable[[Space, Setting], Coroutine[Any, Any, None]]
"""What runs in a space. It is cancelled when the load ends; its objects answer for as long as the machine
incarnations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`require` raises LocalError when a program cannot run so; it is asked before anything starts."""

    name: str
    main: Main
    require: Callable[[Setting], None]
