"""Single edits of the source of the analysis, each to be noticed by a test."""

from __future__ import annotations
import __future__

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Edit:
    """`before` becomes `after` in the source of `function`."""

    function: FunctionType | Callable[..., Any]
    before: str
    after: str

    @property
    def name(self) -> str:
        return (
            f"{self.function.__module__.rpartition('.')[2]}.{self.function.__qualname__}: {self.before} -> {self.after}"
        )

    def apply(self, patch: pytest.MonkeyPatch) -> None:
        source = textwrap.dedent(inspect.getsource(self.function))
        assert source.count(self.before) == 1, f"{self.before!r} stands {source.count(self.before)} times there"
        tree = ast.parse(source.replace(self.before, self.after))
        (definition,) = tree.body
        assert isinstance(definition, ast.FunctionDef)
        definition.decorator_list.clear()
        names = dict(self.function.__globals__)
        flags = __future__.annotations.compiler_flag
        exec(compile(tree, inspect.getsourcefile(self.function) or "", "exec", flags), names)
        patch.setattr(self.function, "__code__", names[definition.name].__code__)
