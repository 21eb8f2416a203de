"""Exported methods of a class, and their implementations."""

from __future__ import annotations

import asyncio
import math
import re
from typing import Any

import pytest

from node.errors import LocalError
from node.objects.alone import alone
from node.objects.api.errors import NoSuchMethod, NotAValue
from node.objects.api.export import Method, Remote, export, kind_name, kind_named, proxy_class
from node.objects.api.space import Ref, Space
from tests.node.objects.samples import Counter, methods, typed


def test_the_typed_sample_runs_as_it_is_typed() -> None:
    async def main(space: Space) -> int:
        counter = space.create(Counter())
        with pytest.raises(Exception, match="ValueError: no"):
            await typed(counter)
        return await counter.add(0)

    assert asyncio.run(alone(main)) == 12 * 2 + 1 + 1


def test_only_what_is_exported_can_be_reached() -> None:
    async def main(space: Space) -> None:
        counter = space.create(Counter())
        with pytest.raises(AttributeError, match="Counter exports no 'count'"):
            _ = counter.count
        with pytest.raises(AttributeError, match="get_state"):
            counter.get_state()
        with pytest.raises(AttributeError, match="_secret"):
            _ = counter._secret  # type: ignore[attr-defined]

    asyncio.run(alone(main))


def test_a_caller_who_asks_all_the_same_gets_no_such_method() -> None:
    class Wider(Counter):
        @export
        async def get_state(self) -> object:
            return 1

        @export
        def subtract(self) -> int:
            return 1

    async def main(space: Space) -> None:
        reference = space.reference_of(space.create(Counter()))
        wider = space.proxy(reference, Wider)
        for method in (wider.subtract, wider.get_state):
            with pytest.raises(NoSuchMethod, match="Counter exports no method"):
                await method()

    asyncio.run(alone(main))


def test_an_object_calls_its_own_methods_without_a_message() -> None:
    counter = Counter()
    assert asyncio.run(counter.twice.__call__(2)) == 4  # type: ignore[arg-type]
    with pytest.raises(LocalError, match="create the object in a space"):
        asyncio.run(_send(counter))


async def _send(counter: Counter) -> None:
    counter.add.send(1)


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


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"timeout": timeout}, f"a finite number of seconds, more than 0, not {timeout!r}")
        for timeout in (0.0, -1.0, math.inf, math.nan, "x", True)
    ],
)
def test_options_that_cannot_be_are_refused(change: dict[str, Any], match: str) -> None:
    with pytest.raises(LocalError, match=match):
        Counter().add.options(**change)


def test_the_first_none_are_refused() -> None:
    async def main(space: Space) -> None:
        with pytest.raises(LocalError, match="ask for 1 or more"):
            space.create(Counter()).add.first(0, 1)

    asyncio.run(alone(main))


def test_an_object_that_lives_nowhere_cannot_be_sent() -> None:
    async def main(space: Space) -> None:
        counter = space.create(Counter())
        with pytest.raises(NotAValue, match="a Counter that was not created in a space"):
            await counter.ask(Counter(), 1)
        assert space.under_way == 0

    asyncio.run(alone(main))
