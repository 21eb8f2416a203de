"""Choice of windows of a run for the report: its first messages, violations, the first change of the protocol, a
roll-back, the first change of the view, and faults. Each is only as long as its picture stays readable.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from analysis import formatting as words
from analysis.checks.properties import Incarnation, MessageId
from analysis.errors import AnalysisError
from analysis.spacetime.compose import compose
from analysis.spacetime.model import Diagram, Scene, Window, protocol_name
from analysis.spacetime.read import UNUSABLE, Reader
from analysis.spacetime.svg import LEFT, PLOT, spacetime_drawing
from analysis.traffic.flows import UNNUMBERED, is_unnumbered, is_untraced
from collector.records import Event, Level, Notice

MAX_CHOICES: Final = 4
MAX_WITNESSES: Final = 2
MAX_FAULTS: Final = 2
MAX_MEMBERS: Final = 8
"""Most lines of a picture chosen here; more would hide one another's arrows."""

BEFORE_ARROWS: Final = 20
AFTER_ARROWS: Final = 55
ENOUGH_ARROWS: Final = 8
"""Arrows after which a window may end at a long silence."""

LONGEST_AROUND_SWITCH_NS: Final = 100_000_000
TELLING_EXECUTIONS: Final = 2
"""Executions that a roll-back must undo to show their order."""

LONGEST_BEFORE_NS: Final = 150_000_000
LONGEST_AFTER_NS: Final = 1_000_000_000
MARGIN_NS: Final = 500_000
EVERYTHING: Final = 1_000_000
"""More arrows than any window here has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One window, with its content in a few words (`title`) and in a sentence (`why`)."""

    title: str
    why: str
    window: Window
    members: tuple[int, ...]
    is_violation: bool = False


def choices(reader: Reader, summary: Mapping[str, Any]) -> list[Choice]:
    """At most MAX_CHOICES windows, none mostly within another. Raises AnalysisError when the tables cannot be used."""
    chosen: list[Choice] = []
    unpromised = _witnesses(reader, summary, promised=False)
    broken = _witnesses(reader, summary, promised=True)
    notable = (*_first(reader), *_switch(reader), *_roll_back(reader), *_view_change(reader), *_faults(reader))
    for choice in (*broken, *notable, *unpromised):
        if len(chosen) < MAX_CHOICES and not any(_is_mostly_in(choice.window, other.window) for other in chosen):
            chosen.append(choice)
    return sorted(chosen, key=lambda choice: choice.window)


def diagram_of(reader: Reader, choice: Choice, *, max_arrows: int, max_marks: int) -> Diagram:
    scene = reader.scene(choice.window)
    return compose(scene, choice.window, members=choice.members, max_arrows=max_arrows, max_marks=max_marks)


def _first(reader: Reader) -> Iterator[Choice]:
    """Window from the first request on."""
    at_ns = reader.first_event(Event.SUBMIT)
    if at_ns is not None:
        members = _first_to_act(reader, at_ns)
        window = _fitted(reader, at_ns, members, before=0)
        yield Choice(title="First messages", why="The first messages of the run.", window=window, members=members)


def _switch(reader: Reader) -> Iterator[Choice]:
    """Window of the first epoch that a member begins after another."""
    epochs: dict[Incarnation, int] = {}
    begun = reader.reports(Notice.IN_FORCE)
    for step in begun:
        if step.value > epochs.setdefault(step.recorder, step.value):
            members = _filled_up(reader, [step.recorder.member])
            window = _fitted(reader, step.at_ns, members, before=BEFORE_ARROWS)
            last_ns = max(one.at_ns for one in begun if one.value == step.value)
            # The window includes the last member to change, but not an incarnation that joins much later.
            settled_ns = min(last_ns + (last_ns - step.at_ns) // 5, step.at_ns + LONGEST_AROUND_SWITCH_NS)
            window = Window(window.from_ns, max(window.until_ns, settled_ns))
            name = protocol_name(step.extra)
            why = f"The protocol changes for the first time, to {name}: members differ for a moment, and nobody stops."
            yield Choice(title=f"Change to {name}", why=why, window=window, members=members)
            return


def _roll_back(reader: Reader) -> Iterator[Choice]:
    """Window of the first roll-back of several executions after the run's start-up, else of the first roll-back."""
    found = reader.reports(Notice.ROLLED_BACK)
    swinging_ns = reader.start_ns + LONGEST_BEFORE_NS
    for step in sorted(found, key=lambda step: step.extra < TELLING_EXECUTIONS or step.at_ns < swinging_ns)[:1]:
        members = _filled_up(reader, [step.recorder.member])
        window = _fitted(reader, step.at_ns, members, before=BEFORE_ARROWS)
        undone = words.plural(step.extra, "execution")
        why = f"Something comes that belongs before what was executed already: {undone} undone, and done again."
        yield Choice(title="Roll-back", why=why, window=window, members=members)


def _view_change(reader: Reader) -> Iterator[Choice]:
    """Window of the first view that replaces another."""
    installed = reader.installations()
    first = min((step.number for step in installed), default=0)
    changed = [step for step in installed if step.number > first]
    if changed:
        number = changed[0].number
        own = [step for step in changed if step.number == number]
        members = _filled_up(reader, [step.recorder.member for step in own])
        window = _fitted(reader, own[0].at_ns, members, before=BEFORE_ARROWS)
        # From the first to the last installation, but not to one that is much later.
        settled_ns = min(own[-1].at_ns + MARGIN_NS, own[0].at_ns + LONGEST_AROUND_SWITCH_NS)
        window = Window(window.from_ns, max(window.until_ns, settled_ns))
        why = f"View {number} takes the place of the one before: its members close that, deliver the rest and go on."
        yield Choice(title=f"View {number}", why=why, window=window, members=members)


def _witnesses(reader: Reader, summary: Mapping[str, Any], *, promised: bool) -> Iterator[Choice]:
    """One window for each property that does not hold and has a witness."""
    failed = [
        (words.clean(name, 40).replace("_", " "), words.mapping(given))
        for name, given in words.mapping(summary.get("properties")).items()
        if words.mapping(given).get("verdict") == "fail" and bool(words.mapping(given).get("promised")) is promised
    ]
    for name, given in failed[:MAX_WITNESSES]:
        witness = words.mapping(given.get("witness"))
        found = _around_witness(reader, words.objects(witness.get("places")))
        if found is not None:
            window, members = found
            why = words.clean(witness.get("sentence")) or f"Here {name} does not hold."
            title = f"Violation: {name}" if promised else f"Not promised: {name}"
            yield Choice(title=title, why=why, window=window, members=members, is_violation=promised)


def _around_witness(reader: Reader, places: Sequence[Mapping[str, Any]]) -> tuple[Window, tuple[int, ...]] | None:
    """Window from the requests of the messages to their deliveries, or its last part if it has too many arrows."""
    members = {name: member for member, name in enumerate(reader.names)}
    involved: set[int] = set()
    messages: set[MessageId] = set()
    times: list[int] = []
    for place in places:
        message = words.mapping(place.get("message"))
        involved |= {members[name] for name in (place.get("member"), message.get("origin")) if name in members}
        if message.get("origin") in members:
            incarnation, number = message.get("incarnation"), message.get("number")
            if isinstance(incarnation, int) and isinstance(number, int):
                messages.add(MessageId(members[message["origin"]], incarnation, number))
        if isinstance(place.get("at_ns"), int):
            times.append(place["at_ns"])
    times += reader.submitted_ns(messages)
    if not times or not involved:
        return None
    chosen = _filled_up(reader, sorted(involved))
    window = Window(min(times) - MARGIN_NS, max(times) + MARGIN_NS)
    begins = _begins(compose(reader.scene(window), window, members=chosen, max_arrows=EVERYTHING))
    most = BEFORE_ARROWS + AFTER_ARROWS
    return (window if len(begins) <= most else Window(begins[-most], window.until_ns)), chosen


def _faults(reader: Reader) -> Iterator[Choice]:
    """Windows at the effects of faults: the first of each kind, then others."""
    for fault in _notable(reader.scene(Window(reader.start_ns, reader.start_ns)))[:MAX_FAULTS]:
        members = _filled_up(reader, _struck(reader, fault))
        window = _fitted(reader, fault["effective_ns"], members, before=BEFORE_ARROWS)
        what = words.fault(fault)
        why = f"Fault #{words.clean(fault.get('id'), 12)} takes effect: {what}."
        yield Choice(title=words.clean(f"Fault: {what}", 44), why=why, window=window, members=members)


def _notable(scene: Scene) -> list[Mapping[str, Any]]:
    """Lasting faults, the first of each kind first, without those that only restore a port."""
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, int, Mapping[str, Any]]] = []
    for place, fault in enumerate(scene.faults):
        kind = words.clean(fault.get("kind"), 24)
        if kind in words.LASTING and isinstance(fault.get("effective_ns"), int) and not words.is_end(fault):
            ranked.append((seen[kind], place, fault))
            seen[kind] += 1
    return [fault for _, _, fault in sorted(ranked, key=lambda one: one[:2])]


def _struck(reader: Reader, fault: Mapping[str, Any]) -> list[int]:
    """Members that a fault affects, taken in turn from each side of a cut."""
    groups = words.mapping(fault.get("parameters")).get("groups")
    sides = (
        [words.texts(group) for group in groups] if isinstance(groups, list) else [words.texts(fault.get("targets"))]
    )
    longest = max(map(len, sides), default=0)
    names = [side[index] for index in range(longest) for side in sides if index < len(side)]
    known = {name: member for member, name in enumerate(reader.names)}
    return [known[name] for name in names if name in known]


def _first_to_act(reader: Reader, at_ns: int) -> tuple[int, ...]:
    if len(reader.names) <= MAX_MEMBERS:
        return tuple(range(len(reader.names)))
    steps = sorted(reader.scene(Window(at_ns, at_ns)).steps, key=lambda step: step.at_ns)
    senders = dict.fromkeys(step.recorder.member for step in steps if step.event == Event.SUBMIT)
    return _filled_up(reader, list(senders))


def _filled_up(reader: Reader, first: Sequence[int]) -> tuple[int, ...]:
    """At most MAX_MEMBERS members: `first`, then others."""
    return tuple(sorted(list(dict.fromkeys([*first, *range(len(reader.names))]))[:MAX_MEMBERS]))


def _fitted(reader: Reader, at_ns: int, members: Sequence[int], *, before: int) -> Window:
    """Window around a time, as long as its picture stays readable."""
    wide = Window(at_ns - (LONGEST_BEFORE_NS if before else MARGIN_NS), at_ns + LONGEST_AFTER_NS)
    begins = _begins(compose(reader.scene(wide), wide, members=members, max_arrows=EVERYTHING))
    earlier = [begin for begin in begins if begin < at_ns]
    later = [begin for begin in begins if begin >= at_ns]
    from_ns = earlier[-before] if before and len(earlier) > before else wide.from_ns
    until_ns = _quiet_after(later) or wide.until_ns
    # Some room at the beginning, so that the first event is not cut off.
    return Window(from_ns - (until_ns - from_ns) // 50, max(until_ns, from_ns + MARGIN_NS))


def _quiet_after(begins: Sequence[int]) -> int | None:
    """End of a window that begins with these arrows: when it is full, or at the end of a burst. None: neither."""
    for place, (begin, following) in enumerate(pairwise(begins), start=1):
        quiet_ns, so_far_ns = following - begin, begin - begins[0]
        if place >= AFTER_ARROWS:
            return following
        if place >= ENOUGH_ARROWS and 2 * quiet_ns > so_far_ns:
            return begin + quiet_ns // 2
    return None


def _begins(diagram: Diagram) -> list[int]:
    """Times at which the arrows of the window begin, in order; those from before it are left out."""
    return [arrow.sent_ns for arrow in diagram.arrows if arrow.tail is not None and arrow.sent_ns is not None]


def _is_mostly_in(window: Window, other: Window) -> bool:
    shared = min(window.until_ns, other.until_ns) - max(window.from_ns, other.from_ns)
    return 2 * shared > window.until_ns - window.from_ns


MAX_ARROWS: Final = 240
MAX_MARKS: Final = 320
"""Most events of a picture of the report, so that four pictures stay below 300 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPicture:
    """One window with its picture. `command`: command that draws it."""

    id: str
    choice: Choice
    diagram: Diagram
    picture: Markup
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPictures:
    """Windows, or the reason why there are none (`absent`)."""

    pictures: Sequence[WindowPicture]
    absent: str
    is_optimistic: bool = False
    """Whether any picture has optimistic deliveries."""
    has_views: bool = False
    """Whether any picture has an installation of a view."""
    left: float = LEFT
    plot: float = PLOT


def pictures_of(path: Path, summary: Mapping[str, Any], run: str) -> WindowPictures:
    """Pictures of a run directory. No content of its files raises an error."""
    if is_untraced(summary) and is_unnumbered(summary):
        return WindowPictures(
            pictures=(), absent=f"No space-time diagram: the programs left no trace records, and {UNNUMBERED}."
        )
    try:
        reader = Reader(path)
        chosen = choices(reader, summary)
        diagrams = [diagram_of(reader, choice, max_arrows=MAX_ARROWS, max_marks=MAX_MARKS) for choice in chosen]
        pictures = [_picture(index, *pair, run) for index, pair in enumerate(zip(chosen, diagrams, strict=True))]
    except (AnalysisError, *UNUSABLE) as error:
        reason = words.clean(str(error).replace(f"{path}/", ""), 200) or type(error).__name__
        return WindowPictures(pictures=(), absent=f"No space-time diagram: {reason}")
    is_optimistic = any(mark.level == Level.OPTIMISTIC for diagram in diagrams for mark in diagram.marks)
    return WindowPictures(
        pictures=pictures,
        is_optimistic=is_optimistic,
        has_views=any(mark.view is not None for diagram in diagrams for mark in diagram.marks),
        absent="" if pictures else "No space-time diagram: no message was sent.",
    )


def _picture(index: int, choice: Choice, diagram: Diagram, run: str) -> WindowPicture:
    from_s, until_s = (f"{diagram.seconds(at_ns):.4f} s" for at_ns in diagram.window)
    return WindowPicture(
        id=f"spacetime-{index}",
        choice=choice,
        diagram=diagram,
        picture=spacetime_drawing(diagram, f"spacetime-{index}-drawing"),
        command=shlex.join(["orderbed", "diagram", run, "--from", from_s, "--until", until_s]),
    )
