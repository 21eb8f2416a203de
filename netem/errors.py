"""The one error of this room."""

from __future__ import annotations


class FabricError(Exception):
    """The kernel, the guest or a runtime refused.

    The message names the step, the namespace or device, the cause and the remedy.
    """
