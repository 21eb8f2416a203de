"""Programs of objects that a run can name: the parameter `program` of the protocol `objects`."""

from __future__ import annotations

from node.objects.programs.figures import FIGURES
from node.objects.programs.program import Program
from node.objects.programs.replicated import REPLICATED

__all__ = ["PROGRAMS", "Program"]

PROGRAMS: dict[str, Program] = {program.name: program for program in (FIGURES, REPLICATED)}
