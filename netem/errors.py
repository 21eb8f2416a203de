"""Errors of netem."""

from __future__ import annotations


class FabricError(Exception):
    """The kernel, the guest or a runtime refused.

    The message names the step, the namespace or device, the cause and the remedy.
    """


class CannotStartError(FabricError):
    """A command cannot be started in a node. `exit_code` is that of shells: 127 if there is no such program, 126 if it
    cannot be executed.
    """

    def __init__(self, sentence: str, *, is_there: bool) -> None:
        super().__init__(sentence)
        self.is_there = is_there

    @property
    def exit_code(self) -> int:
        return 126 if self.is_there else 127
