"""The interface of programs: a program, and its setting."""

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
"""Bits of the number of objects in a report of TIMED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The setting of a program, which runs once in each address space of each machine. `space`: its number on the
    machine, from 0."""

    membership: Membership
    space: int
    spaces: int
    """Number of spaces of each machine."""
    options: ProgramParameters
    report: Callable[[Report], None]
    """Put a report into the run's trace."""
    now_ns: Callable[[], int]
    """The time in ns since the start of the load."""

    def report_time(self, what: Timed, objects: int, took_ns: int) -> None:
        """Report that `what`, with this number of objects, took `took_ns`."""
        self.report(Report(code=CallReport.TIMED, member=what << OBJECTS_BITS | objects, value=took_ns))

    @property
    def networks(self) -> tuple[tuple[int, ...], ...]:
        """The machines of each sub-network."""
        return self.membership.partitions or (self.membership.members,)


Main: TypeAlias = Callable[[Space, Setting], Coroutine[Any, Any, None]]
"""The coroutine that runs in a space. It is cancelled when the load ends; its objects answer until the machine
stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program. `require` raises LocalError when it cannot run in this setting; it is called before anything
    starts."""

    name: str
    main: Main
    require: Callable[[Setting], None]
