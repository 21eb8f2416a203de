"""Formats of numbers and names for users, the same in the report and on a terminal.

The files of a run directory may be hostile: every function here takes any JSON value and returns one short clean line.
A value that is missing or of the wrong kind reads `–`.
"""

from __future__ import annotations

import math
import string
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

MISSING: Final = "–"
MAX_TEXT: Final = 300
"""Most characters of one text in the report; names and sentences are shorter."""

LASTING: Final = ("impair", "cut", "crash", "pause", "slow", "deaf", "clock")
"""Kinds of faults that are in force until another one ends them (`heal`, `restart`, `resume`), or to the end."""

ENDING: Final = ("heal", "restart", "resume", "recover")
"""Kinds that only end other faults."""


def number(value: object) -> float | None:
    """A finite number, or None. Texts and truth values are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def scaled(value: object, factor: float) -> float | None:
    """A number times a factor; None if it is no number."""
    given = number(value)
    return None if given is None else given * factor


def direction(value: object) -> str:
    """`to node`, `from node`, `shared medium`."""
    given = clean(value, 24)
    return {"to-node": "to node", "from-node": "from node", "shared": "shared medium"}.get(given, given)


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def objects(value: object) -> list[Mapping[str, Any]]:
    """The JSON objects of a list; anything else counts as an empty list."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def clean(value: object, limit: int = MAX_TEXT) -> str:
    """One line without control, direction and format characters (terminal escapes, reversed names), cut at `limit`."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else _flat(value)
    shown = text[: limit * 4]
    if not shown.isprintable():
        shown = "".join(" " if character.isspace() else character for character in shown)
        shown = "".join(c for c in shown if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn"))
    shown = " ".join(shown.split())
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def texts(value: object, limit: int = MAX_TEXT) -> list[str]:
    """The list's items, each as one clean line; empty ones left out."""
    lines = [clean(item, limit) for item in value] if isinstance(value, list | tuple) else []
    return [line for line in lines if line]


def count(value: object) -> str:
    """`12,345`"""
    given = number(value)
    return MISSING if given is None else f"{given:,.0f}"


def significant(value: object, digits: int = 3) -> str:
    """Three significant digits without an exponent: `0.0123`, `5.14`, `1,230`."""
    given = number(value)
    if given is None:
        return MISSING
    if given == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(given))))
    return f"{given:,.{min(places, 9)}f}"


def milliseconds(value: object) -> str:
    """`5.14 ms`, `1.23 s` from 1,000 ms on, `840 us` below 1 ms."""
    given = number(value)
    if given is None:
        return MISSING
    if abs(given) >= 1000:
        return f"{significant(given / 1000)} s"
    if 0 < abs(given) < 1:
        return f"{significant(given * 1000)} us"
    return f"{significant(given)} ms"


def nanoseconds(value: object) -> str:
    """A duration in ns, written like `milliseconds`."""
    given = number(value)
    return MISSING if given is None else milliseconds(given / 1e6)


def cost_rate(value: object) -> str:
    """Cost of ordering, in ns (of waiting messages) per second of time, as `3.81 ms/s`."""
    given = number(value)
    return MISSING if given is None else f"{significant(given / 1e6)} ms/s"


def seconds(value: object, places: int = 3) -> str:
    given = number(value)
    return MISSING if given is None else f"{given:,.{places}f} s"


def percent(value: object) -> str:
    """A ratio as `1.02 %`."""
    given = number(value)
    return MISSING if given is None else f"{significant(given * 100)} %"


def size(value: object) -> str:
    """Bytes as `1.20 MB` (powers of ten, as the wire counts)."""
    return _scaled(value, ("B", "kB", "MB", "GB", "TB"))


def bit_rate(value: object) -> str:
    """`9.98 Mbit/s`"""
    return _scaled(value, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"))


def plain(value: object) -> str:
    """A number as a user types it: `5`, `2.5`, `0.1`."""
    given = number(value)
    return MISSING if given is None else f"{given:.6g}"


def protocol(name: object) -> str:
    """A protocol's name as the papers write it: `Time Warp`, `All-Ack`; other names are unchanged."""
    shown = clean(name, 40)
    return _PROTOCOLS.get(shown.lower(), shown) or MISSING


_PROTOCOLS: Final[Mapping[str, str]] = {
    "abcast": "ABCAST",
    "adaptive": "Adaptive",
    "allack": "All-Ack",
    "atop": "ATOP",
    "atop_mbs": "ATOP with MBS",
    "lamport": "Lamport",
    "sequencer": "Sequencer",
    "timewarp": "Time Warp",
}


def plural(value: int, one: str, many: str | None = None) -> str:
    """`1 node`, `30 nodes`"""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def listed(names: Sequence[str], limit: int = 4) -> str:
    """`p1/n1, p1/n2 and 8 more`"""
    if len(names) <= limit:
        return ", ".join(names)
    return f"{', '.join(names[: limit - 1])} and {len(names) - limit + 1} more"


def member(given: object) -> str:
    """An incarnation of a section `views`: `p1/n3`; a later one `p1/n3 (2)`."""
    entry = mapping(given)
    name, incarnation = clean(entry.get("member"), 60), number(entry.get("incarnation"))
    return f"{name} ({incarnation:.0f})" if incarnation is not None and incarnation > 1 else name


def members(given: object) -> str:
    """The first dozen incarnations of a list."""
    return listed([member(one) for one in objects(given)[:300]], 12)


def ranges(names: str) -> str:
    """`p1/n3..n5, p2/n1` for a list of all the names."""
    runs: list[list[str]] = []
    for name in names.split(", "):
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    texts = [run[0] if len(run) == 1 else f"{run[0]}..{run[-1].rpartition('/')[2]}" for run in runs]
    return ", ".join(texts[:20]) + (" …" if len(texts) > 20 else "")


def _follows(before: str, name: str) -> bool:
    stem, other = before.rstrip(string.digits), name.rstrip(string.digits)
    number, following = before[len(stem) :], name[len(other) :]
    return stem == other and "" not in (number, following) and int(following[:9]) == int(number[:9]) + 1


def impairment(asked: object) -> list[str]:
    """An impairment (fields of `topologies.model.Impairment`) as short phrases; empty when frames pass untouched."""
    given = mapping(asked)
    phrases = [_delay(given), _loss(given)]
    for name, word in (
        ("duplicate_ratio", "duplicated"),
        ("reorder_ratio", "reordered"),
        ("corrupt_ratio", "corrupted"),
    ):
        if number(given.get(name)):
            phrases.append(f"{_share(given[name])} {word}")
    phrases.append(_queue(given))
    return [phrase for phrase in phrases if phrase]


def is_end(fault: Mapping[str, Any]) -> bool:
    """Whether a line of faults.jsonl only ends earlier faults."""
    return fault.get("kind") in ENDING or (fault.get("kind") == "impair" and fault.get("restores") is True)


def numbers(faults: Iterable[Mapping[str, Any]]) -> dict[float | None, int]:
    """Index in section `faults` of summary.json, by id, of the faults that do not only end others."""
    begun = [line for line in faults if not is_end(line)]
    return {number(line.get("id")): place for place, line in enumerate(begun)}


def fault(fault: Mapping[str, Any]) -> str:
    """Effect of a fault, without place and time: `1 % loss, 5 ms`, `cut`, `crash`."""
    kind = clean(fault.get("kind"), 24) or "fault"
    parameters = mapping(fault.get("parameters"))
    if kind == "impair":
        return ", ".join(impairment(parameters)) or "impairment lifted"
    if kind == "cut":
        return _cut(parameters)
    if kind == "slow":
        return f"slow: {_share(parameters.get('cpu_ratio'))} of a core"
    if kind == "deaf":
        return f"deaf: a receive buffer of {plain(number(parameters.get('buffer_bytes')) or 0)} B"
    if kind == "clock":
        return _clock(parameters)
    if kind == "recover":
        return f"recover from {clean(parameters.get('what'), 24) or 'it'}"
    return kind


def _clock(parameters: Mapping[str, Any]) -> str:
    step_ns, drift_ppm = number(parameters.get("step_ns")), number(parameters.get("drift_ppm"))
    parts = [f"{step_ns / 1e6:+g} ms" if step_ns else "", f"{drift_ppm:+g} ppm" if drift_ppm else ""]
    return "clock " + " and ".join(part for part in parts if part)


def _cut(parameters: Mapping[str, Any]) -> str:
    groups, shape = parameters.get("groups"), clean(parameters.get("shape"), 60)
    if shape and (not isinstance(groups, list) or len(groups) > 4):
        return f"cut {shape}"
    if isinstance(groups, list) and groups:
        return (
            "cut " + " | ".join(_group(texts(group, 60)) for group in groups[:6]) + (" | …" if len(groups) > 6 else "")
        )
    pairs = parameters.get("pairs")
    if isinstance(pairs, list) and pairs:
        return f"cut {plural(len(pairs), 'one-way path')}"
    return "cut"


def _group(names: Sequence[str]) -> str:
    """A side of a cut: its nodes when they are few, else its partitions and the number of nodes."""
    if len(names) <= 3:
        return ", ".join(names) or "nobody"
    partitions = list(dict.fromkeys(name.partition("/")[0] for name in names))
    return f"{listed(partitions)} ({len(names)})"


def _delay(given: Mapping[str, Any]) -> str:
    delay_ns, jitter_ns = number(given.get("delay_ns")), number(given.get("jitter_ns"))
    if not delay_ns and not jitter_ns:
        return ""
    phrase = f"{plain((delay_ns or 0) / 1e6)} ms"
    if jitter_ns:
        shape = clean(given.get("distribution"), 16)
        phrase += f" ± {plain(jitter_ns / 1e6)} ms" + (f" ({shape})" if shape else "")
    return phrase


def _loss(given: Mapping[str, Any]) -> str:
    if not number(given.get("loss_ratio")):
        return ""
    burst = number(given.get("loss_burst_frames")) or 1.0
    return f"{_share(given['loss_ratio'])} loss" + (f" in bursts of {plain(burst)}" if burst > 1 else "")


def _queue(given: Mapping[str, Any]) -> str:
    rate_bps = number(given.get("rate_bps"))
    if not rate_bps:
        return ""
    phrase = bit_rate(rate_bps)
    if number(given.get("queue_frames")):
        return f"{phrase}, queue {plural(int(given['queue_frames']), 'frame')}"
    if number(given.get("queue_bytes")):
        return f"{phrase}, queue {size(given['queue_bytes'])}"
    return phrase


def _share(ratio: object) -> str:
    return f"{plain((number(ratio) or 0) * 100)} %"


def _scaled(value: object, units: Sequence[str]) -> str:
    given = number(value)
    if given is None:
        return MISSING
    step = 0
    while abs(given) >= 1000 and step < len(units) - 1:
        given, step = given / 1000, step + 1
    text = f"{given:,.0f}" if step == 0 else significant(given)
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {units[step]}"


def _flat(value: object) -> str:
    """A JSON value on one line, without recursion."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_leaf(item)}" for key, item in list(value.items())[:32])
    if isinstance(value, list | tuple):
        return ", ".join(_leaf(item) for item in value[:32])
    return _leaf(value)


def _leaf(value: object) -> str:
    if isinstance(value, str | int | float | bool) or value is None:
        return str(value)[: 4 * MAX_TEXT]
    if isinstance(value, Mapping):
        return "{…}" if value else "{}"
    return "[…]" if value else "[]"
