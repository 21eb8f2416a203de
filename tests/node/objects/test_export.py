"""Exported methods of a class, and their implementations."""

from __future__ import annotations

import asyncio
import math
import re
from typing import TYPE_CHECKING, Any, cast

import pytest

from node.errors import LocalError
from node.objects.api.errors import BadArguments, NoSuchMethod, NotAValue
from node.objects.api.export import Checks, Method, Remote, export, kind_name, kind_named, proxy_class
from node.objects.api.groups import RGroup, UGroup
from node.objects.api.space import Ref, Space
from tests.node.objects.samples import Counter, in_space, methods, typed

if TYPE_CHECKING:
    from decimal import Decimal


@in_space
async def test_the_typed_sample_runs_as_it_is_typed(space: Space) -> None:
    counter = space.create(Counter())
    with pytest.raises(Exception, match="ValueError: no"):
        await typed(counter)
    assert await counter.add(0) == 12 * 2 + 1 + 1


@in_space
async def test_only_what_is_exported_can_be_reached(space: Space) -> None:
    counter = space.create(Counter())
    with pytest.raises(AttributeError, match="Counter exports no 'count'"):
        _ = counter.count
    with pytest.raises(AttributeError, match="get_state"):
        counter.get_state()
    with pytest.raises(AttributeError, match="_secret"):
        _ = counter._secret  # type: ignore[attr-defined]


@in_space
async def test_a_caller_who_asks_all_the_same_gets_no_such_method(space: Space) -> None:
    class Wider(Counter):
        @export
        async def get_state(self) -> object:
            return 1

        @export
        def subtract(self) -> int:
            return 1

    reference = space.reference_of(space.create(Counter()))
    wider = space.proxy(reference, Wider)
    for method in (wider.subtract, wider.get_state):
        with pytest.raises(NoSuchMethod, match="Counter exports no method"):
            await method()


def test_an_object_calls_its_own_methods_without_a_message() -> None:
    async def main() -> None:
        counter = Counter()
        assert await counter.twice(2) == 4
        with pytest.raises(LocalError, match="create the object in a space"):
            counter.add.send(1)

    asyncio.run(main())


def test_methods_are_known_by_name_and_inherited() -> None:
    class Child(Counter):
        plain = None  # type: ignore[assignment]

        @export
        async def more(self) -> int:
            return 1

    assert set(Child.exported) == set(Counter.exported) - {"plain"} | {"more"}
    assert isinstance(methods()[1], Method)
    assert Counter.add.name == "add"
    assert Counter.add.__doc__ == "The sum."
    assert kind_named(kind_name(Counter)) is Counter
    assert kind_named("no.such.Class") is Remote


def test_private_methods_and_what_is_no_method_cannot_be_exported() -> None:
    with pytest.raises(LocalError, match="private"):

        @export
        def _hidden(self: Remote) -> int:
            return 1

    with pytest.raises(LocalError, match="only methods of objects"):
        Method(staticmethod(print))


def test_names_that_proxies_need_cannot_be_exported() -> None:
    class Clashing(Remote):
        @export
        def begin(self) -> int:
            return 1

    with pytest.raises(LocalError, match=re.escape("Clashing cannot export begin: Ref has that name already")):
        proxy_class(Ref, Clashing)


@pytest.mark.parametrize("timeout", [0.0, -1.0, math.inf, math.nan, "x", True])
def test_time_outs_that_cannot_be_are_refused(timeout: Any) -> None:
    with pytest.raises(LocalError, match=f"a finite number of seconds, more than 0, not {timeout!r}"):
        Counter().add.options(timeout=timeout)


@in_space
async def test_the_first_none_are_refused(space: Space) -> None:
    with pytest.raises(LocalError, match="ask for 1 or more"):
        space.create(Counter()).add.first(0, 1)


@in_space
async def test_an_object_that_lives_nowhere_cannot_be_sent(space: Space) -> None:
    counter = space.create(Counter())
    with pytest.raises(NotAValue, match="a Counter that was not created in a space"):
        await counter.ask(Counter(), 1)
    assert space.under_way == 0


@in_space
async def test_what_is_no_class_of_objects_is_refused_with_a_sentence(space: Space) -> None:
    unfit: Any = int
    sentence = "int is no class of objects that others can call: such a class is derived from Remote"
    for given, what in ((object(), "a object"), (Counter, "the class Counter"), (space.create(Counter()), "a Ref")):
        with pytest.raises(LocalError, match=f"^{what}.* is no object that others can call: create one"):
            space.create(cast("Any", given))
    with pytest.raises(LocalError, match=sentence):
        await RGroup.create(space, unfit)
    with pytest.raises(LocalError, match=sentence):
        UGroup.create(space, unfit)
    for ask in (space.names.lookup, space.names.find, space.names.wait_for):
        with pytest.raises(LocalError, match=sentence):
            await ask("x", unfit)
    with pytest.raises(LocalError, match="a Counter is no class of objects"):
        await RGroup.create(space, cast("Any", Counter()))
    with pytest.raises(LocalError, match="a name is a text, not 5"):
        await space.names.lookup(cast("Any", 5), Counter)


# Whether arguments fit a signature.


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
