"""Edits: bugs put into shipped code for as long as a `MonkeyPatch` lasts."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

import pytest

Edit: TypeAlias = Callable[[pytest.MonkeyPatch], None]
Shipped: TypeAlias = Callable[..., Any]
"""The method as it is without the edit; it takes its object first."""


def replaces(owner: Any, name: str) -> Callable[[Shipped], Edit]:
    """Make an edit of a function that takes the place of this method, or of this function of a module. It is given the
    shipped one, then the arguments of the call.
    """

    def edit_by(edited: Shipped) -> Edit:
        @wraps(edited)
        def edit(patch: pytest.MonkeyPatch) -> None:
            shipped = getattr(owner, name)
            patch.setattr(owner, name, lambda *given, **named: edited(shipped, *given, **named))

        return edit

    return edit_by
