"""What the report shows of views: one row for each view, minority and transfer of state. From section `views` of the
summary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from analysis.report import formatting as words
from analysis.report.rows import Fact

MAX_ROWS: Final = 300
MAX_LISTED: Final = 12
"""Members that are named in one cell."""


class ViewRow(NamedTuple):
    """One view: why it took the place of the one before, and when its members installed it."""

    number: str
    reason: str
    members: str
    changed: str
    """Who has come and who is gone."""
    first: str
    last: str
    took: str
    """From the first sign of the change to the last installation."""


class MinorityRow(NamedTuple):
    """One time that one member had no quorum."""

    member: str
    view: str
    heard: str
    since: str
    lasted: str


class TransferRow(NamedTuple):
    """The state that one joiner got."""

    member: str
    view: str
    donor: str
    size: str
    at: str
    took: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The section."""

    facts: list[Fact]
    views: list[ViewRow]
    views_left_out: int
    minorities: list[MinorityRow]
    transfers: list[TransferRow]
    ended: list[tuple[str, str, str]]
    """Member, what became of it, and when."""


def told(summary: Mapping[str, Any]) -> Told | None:
    """None when the summary has no section `views`."""
    given = words.mapping(summary.get("views"))
    views = words.objects(given.get("views"))
    if not views:
        return None
    return Told(
        facts=list(_facts(given)),
        views=[_view(view) for view in views[:MAX_ROWS]],
        views_left_out=max(len(views) - MAX_ROWS, 0),
        minorities=[_minority(one) for one in words.objects(given.get("minorities"))[:MAX_ROWS]],
        transfers=[_transfer(one) for one in words.objects(given.get("transfers"))[:MAX_ROWS]],
        ended=[_end(one) for one in words.objects(given.get("ended"))[:MAX_ROWS]],
    )


def in_short(summary: Mapping[str, Any]) -> str:
    """`4 views, the slowest change 61.2 ms, 1 incarnation excluded`; empty without views."""
    given = words.mapping(summary.get("views"))
    if not given:
        return ""
    change_ms, excluded = words.number(given.get("change_max_ms")), words.number(given.get("excluded"))
    parts = [
        words.plural(int(words.number(given.get("installed")) or 0), "view"),
        "" if change_ms is None else f"the slowest change {words.milliseconds(change_ms)}",
        f"{words.plural(int(excluded), 'incarnation')} excluded" if excluded else "",
    ]
    return ", ".join(part for part in parts if part)


def _facts(given: Mapping[str, Any]) -> Iterator[Fact]:
    note = f"the last is view {words.count(given.get('last'))}"
    yield Fact("Views installed", words.count(given.get("installed")), note)
    for key, name, note in _GREATEST:
        if words.number(given.get(key)) is not None:
            yield Fact(name, words.milliseconds(given.get(key)), note)
    for key, name in (("excluded", "Incarnations excluded"), ("left", "Incarnations that left")):
        if words.number(given.get(key)):
            yield Fact(name, words.count(given.get(key)), "")


_GREATEST: Final = (
    (
        "change_max_ms",
        "Slowest change",
        "from the first sign that something had ended or come to the last installation",
    ),
    ("spread_max_ms", "Longest installation", "from the first member that installed a view to the last"),
    ("minority_max_ms", "Longest time without a quorum", "of one member"),
    ("transfer_max_ms", "Slowest transfer of state", "from the installation until the joiner had it"),
)


def _view(given: Mapping[str, Any]) -> ViewRow:
    joined, gone = words.objects(given.get("joined")), words.objects(given.get("gone"))
    changed = [f"+ {_names(joined)}" if joined else "", f"− {_names(gone)}" if gone else ""]
    return ViewRow(
        number=words.count(given.get("number")),
        reason=words.clean(given.get("reason"), 40).replace("_", " "),
        members=_names(words.objects(given.get("members"))),
        changed=" ".join(part for part in changed if part),
        first=_seconds(given.get("first_ms")),
        last=_seconds(given.get("last_ms")),
        took=words.milliseconds(given.get("change_ms")),
    )


def _minority(given: Mapping[str, Any]) -> MinorityRow:
    lasted = words.milliseconds(given.get("for_ms"))
    return MinorityRow(
        member=_name(given),
        view=words.count(given.get("view")),
        heard=words.count(given.get("heard")),
        since=_seconds(given.get("from_ms")),
        lasted=lasted if given.get("ended") else f"{lasted}, to its end",
    )


def _transfer(given: Mapping[str, Any]) -> TransferRow:
    return TransferRow(
        member=_name(given),
        view=words.count(given.get("view")),
        donor=_name(words.mapping(given.get("donor"))),
        size=words.size(given.get("bytes")),
        at=_seconds(given.get("at_ms")),
        took=words.milliseconds(given.get("took_ms")),
    )


def _end(given: Mapping[str, Any]) -> tuple[str, str, str]:
    return _name(given), words.clean(given.get("how"), 40), _seconds(given.get("at_ms"))


def _names(given: list[Mapping[str, Any]]) -> str:
    return words.listed([_name(one) for one in given[:MAX_ROWS]], MAX_LISTED)


def _name(given: Mapping[str, Any]) -> str:
    """`p1/n3`; a later incarnation `p1/n3 (2)`."""
    name, incarnation = words.clean(given.get("member"), 60), words.number(given.get("incarnation"))
    return f"{name} ({incarnation:.0f})" if incarnation is not None and incarnation > 1 else name


def _seconds(ms: object) -> str:
    given = words.number(ms)
    return words.seconds(None if given is None else given / 1000)
