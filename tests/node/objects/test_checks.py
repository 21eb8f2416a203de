"""Whether arguments fit a signature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from node.objects.api.errors import BadArguments
from node.objects.api.export import Checks
from tests.node.objects.samples import Counter

if TYPE_CHECKING:
    from decimal import Decimal


class Sample:
    def many(self, a: int, b: str = "", *rest: float, c: bool = False, **more: bytes) -> None: ...

    def typed(
        self,
        a: list[int],
        b: dict[str, float | None] | None = None,
        c: tuple[int, ...] = (),
        d: tuple[int, str] = (0, ""),
        e: Any = None,
    ) -> None: ...

    def needs(self, *, key: int) -> None: ...

    def unknown(self, a: Decimal, b: int) -> None: ...

    def proxy(self, other: Counter) -> None: ...


@pytest.mark.parametrize(
    ("name", "arguments", "keywords"),
    [
        ("many", (1,), {}),
        ("many", (True, "x", 1.5, 2), {"c": True, "d": b"x"}),
        ("many", (), {"a": 1, "b": "x"}),
        ("typed", ([],), {}),
        ("typed", ([1, 2], {"x": 1.0, "y": None}, (1, 2, 3), (1, "x"), {1}), {}),
        ("typed", ([1], None), {"e": 5}),
        ("needs", (), {"key": 1}),
        ("unknown", ("what", "ever"), {}),
    ],
)
def test_what_fits_passes(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    checks = Checks(getattr(Sample, name))
    for _ in range(2):
        checks.check(arguments, keywords)


@pytest.mark.parametrize(
    ("name", "arguments", "keywords", "match"),
    [
        ("many", (), {}, "many: missing a required argument: 'a'"),
        ("many", ("1",), {}, "many: a must be int, not '1'"),
        ("many", (1, None), {}, "many: b must be str, not None"),
        ("many", (1, "x", "y"), {}, "rest must be float"),
        ("many", (1,), {"c": 1}, "c must be bool"),
        ("many", (1,), {"more": 1}, "more must be bytes"),
        ("many", (1,), {"a": 2}, "multiple values for argument 'a'"),
        ("typed", ([1, "2"],), {}, r"a must be list\[int\]"),
        ("typed", ((1,),), {}, r"a must be list\[int\]"),
        ("typed", ([], {1: 1.0}), {}, "b must be"),
        ("typed", ([], {"x": "y"}), {}, "b must be"),
        ("typed", ([], None, (1, "x")), {}, "c must be"),
        ("typed", ([], None, (), (1, "x", 2)), {}, "d must be"),
        ("typed", ([], None, (), (), None, 6), {}, "too many positional arguments"),
        ("needs", (), {}, "missing a required"),
        ("needs", (1,), {}, "too many positional arguments"),
        ("unknown", (1,), {}, "missing a required argument: 'b'"),
        ("proxy", (7,), {}, "other must be Counter"),
        ("proxy", ("x" * 100,), {}, r"not 'x+\.\.\."),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(
    name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], match: str
) -> None:
    with pytest.raises(BadArguments, match=match):
        Checks(getattr(Sample, name)).check(arguments, keywords)
