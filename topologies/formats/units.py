"""Quantities with units: `20 ms`, `10 Mbit/s`, `1 %`, `64 kB`, `20 frames`, `50 /s`.

Arithmetic is exact (Decimal); a value finer than the base unit is refused instead of rounded. A number without a unit
is refused, too, except 0. Prefixes k, M and G are powers of ten, Ki, Mi and Gi powers of two. Every `parse_` function
takes any value of a file and raises UnitError with a sentence; every `format_` function writes a text that its parser
reads back to the same value.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Final

MAX_TEXT = 64
"""Most characters of a quantity: a longer text is a mistake or an attack."""

MAX_VALUE = 2**63 - 1
"""Greatest value in the base unit, so that every value fits the 64-bit fields of kernel and capture. 2**63 ns are 292
years.
"""

_NUMBER = r"[+-]?[0-9]+(?:\.[0-9]+)?"
_EXACTLY = Context(prec=4 * MAX_TEXT)
"""Context with more digits than any product here can have; the default context would round at 28."""

_QUANTITY = re.compile(rf"({_NUMBER})\s*(\S.*)?", re.ASCII | re.DOTALL)


class UnitError(ValueError):
    """The text is not a quantity of the kind; `str()` names the valid ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A kind of quantity: its name and an example for users, and each unit's factor to the base unit."""

    name: str
    example: str
    factors: Mapping[str, Decimal]
    base: str
    """Text of the smallest step: results are whole multiples of it."""

    @property
    def pattern(self) -> str:
        """Regular expression (ECMA, for editors) of the texts that the parser reads."""
        units = "|".join(re.escape(unit) for unit in self.factors)
        return rf"^{_NUMBER} *({units})$"


def _factors(**factors: int) -> Mapping[str, Decimal]:
    return {name: Decimal(factor) for name, factor in factors.items()}


_DECIMAL_PREFIXES = (("", 1), ("k", 10**3), ("M", 10**6), ("G", 10**9))

DURATION: Final = Unit(
    name="a duration",
    example="20 ms",
    factors=_factors(ns=1, us=10**3, ms=10**6, s=10**9, min=60 * 10**9, h=3600 * 10**9),
    base="1 ns",
)
RATE: Final = Unit(
    name="a rate",
    example="10 Mbit/s",
    factors={
        **{f"{prefix}bit/s": Decimal(factor) for prefix, factor in _DECIMAL_PREFIXES},
        **{f"{prefix}B/s": Decimal(8 * factor) for prefix, factor in _DECIMAL_PREFIXES},
    },
    base="1 bit/s",
)
SIZE: Final = Unit(
    name="a size",
    example="1500 B",
    factors=_factors(B=1, kB=10**3, MB=10**6, GB=10**9, KiB=2**10, MiB=2**20, GiB=2**30),
    base="1 B",
)
RATIO: Final = Unit(name="a ratio", example="1 %", factors={"%": Decimal("0.01")}, base="")
FRAMES: Final = Unit(
    name="a number of frames", example="20 frames", factors=_factors(frames=1, frame=1), base="1 frame"
)
EVENT_RATE: Final = Unit(name="an event rate", example="50 /s", factors={"/s": Decimal(1)}, base="")
DRIFT: Final = Unit(name="a drift", example="50 ppm", factors={"ppm": Decimal(1), "ppb": Decimal("0.001")}, base="")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimit:
    """Capacity of a queue in frames or bytes, never both; neither means unlimited."""

    frames: int | None = None
    size_bytes: int | None = None


UNLIMITED: Final = "unlimited"


def parse_duration(given: object) -> int:
    """`20 ms` -> 20_000_000 (ns). Not negative."""
    _refuse_negative(given, DURATION)
    return _whole(given, DURATION)


def parse_offset(given: object) -> int:
    """`-5 ms` -> -5_000_000 (ns). A duration that may be negative."""
    return _whole(given, DURATION)


def parse_rate(given: object) -> int:
    """`10 Mbit/s` -> 10_000_000 (bit/s). Positive."""
    rate_bps = _whole(given, RATE)
    if rate_bps <= 0:
        raise UnitError(f"expected a rate above 0, got {shown(given)}")
    return rate_bps


def parse_size(given: object) -> int:
    """`64 KiB` -> 65_536 (bytes). Not negative."""
    _refuse_negative(given, SIZE)
    return _whole(given, SIZE)


def parse_ratio(given: object) -> float:
    """`1 %` -> 0.01. Between 0 % and 100 %; a plain number is refused, because 0.01 and 1 are ambiguous."""
    ratio = _exact(given, RATIO)
    if not 0 <= ratio <= 1:
        raise UnitError(f"expected a ratio between 0 % and 100 %, got {shown(given)}")
    return float(ratio)


def parse_frames(given: object) -> int:
    """`20 frames` -> 20. At least 1."""
    frames = _whole(given, FRAMES)
    if frames < 1:
        raise UnitError(f"expected at least 1 frame, got {shown(given)}")
    return frames


def parse_burst(given: object) -> float:
    """`2.5 frames` -> 2.5: a mean length of bursts, at least 1 frame."""
    frames = _exact(given, FRAMES)
    if frames < 1:
        raise UnitError(f"expected a mean burst of at least 1 frame, got {shown(given)}")
    return float(frames)


def parse_queue(given: object) -> QueueLimit:
    """`20 frames` or `64 kB` (at least 1), or `unlimited`."""
    if given == UNLIMITED:
        return QueueLimit()
    _, unit = _split(given)
    if unit in FRAMES.factors:
        return QueueLimit(frames=parse_frames(given))
    if unit not in SIZE.factors:
        raise UnitError(
            f"expected a queue limit such as '20 frames' or '64 kB' "
            f"(units: frames, {', '.join(SIZE.factors)}; or {UNLIMITED}), got {shown(given)}"
        )
    size_bytes = parse_size(given)
    if size_bytes < 1:
        raise UnitError(f"expected a queue of at least 1 B, got {shown(given)}")
    return QueueLimit(size_bytes=size_bytes)


def parse_event_rate(given: object) -> float:
    """`50 /s` -> 50.0 (per second). Not negative."""
    _refuse_negative(given, EVENT_RATE)
    return float(_exact(given, EVENT_RATE))


def parse_drift(given: object) -> float:
    """`-50 ppm` -> -50.0: parts per million that a clock is too fast."""
    return float(_exact(given, DRIFT))


def format_duration(duration_ns: int) -> str:
    """20_000_000 -> `20 ms`. The largest unit, up to seconds, in which the number is at least 1."""
    return _formatted(duration_ns, DURATION, ("s", "ms", "us", "ns"))


def format_rate(rate_bps: int) -> str:
    return _formatted(rate_bps, RATE, ("Gbit/s", "Mbit/s", "kbit/s", "bit/s"))


def format_size(size_bytes: int) -> str:
    """65_536 -> `64 KiB`, 64_000 -> `64 kB`: whichever is shorter."""
    decimal = _formatted(size_bytes, SIZE, ("GB", "MB", "kB", "B"))
    binary = _formatted(size_bytes, SIZE, ("GiB", "MiB", "KiB", "B"))
    return min(decimal, binary, key=len)


def format_ratio(ratio: float) -> str:
    return f"{_plain(Decimal(repr(ratio)) * 100)} %"


def format_frames(frames: float) -> str:
    return f"{_plain(Decimal(repr(frames)))} {'frame' if frames == 1 else 'frames'}"


def format_queue(queue: QueueLimit) -> str:
    if queue.frames is not None:
        return format_frames(queue.frames)
    return UNLIMITED if queue.size_bytes is None else format_size(queue.size_bytes)


def format_event_rate(rate_per_s: float) -> str:
    return f"{_plain(Decimal(repr(rate_per_s)))} /s"


def format_drift(drift_ppm: float) -> str:
    return f"{_plain(Decimal(repr(drift_ppm)))} ppm"


def shown(given: object) -> str:
    """Any given value for an error sentence, as one short line."""
    if given is None:
        return "nothing"
    if isinstance(given, Mapping):
        return "a block of keys"
    if isinstance(given, list | tuple):
        return "a list"
    if isinstance(given, bool):
        return str(given).lower()
    text = repr(given)
    return text if len(text) <= 50 else f"{text[:46]}…{text[0]}"


def printable(text: str) -> str:
    """An untrusted text for a terminal: characters that would move the cursor, change colours or reverse the direction
    of text are replaced. Line feeds stay.
    """
    return "".join(letter if _is_harmless(letter) else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _is_harmless(letter: str) -> bool:
    return letter.isprintable() or letter == "\n" or unicodedata.category(letter) == "Zs"


def _exact(given: object, unit: Unit) -> Decimal:
    """Value in base units. Zero needs no unit: it is the same in all of them."""
    if isinstance(given, int | float) and not isinstance(given, bool) and given == 0:
        return Decimal(0)
    number, name = _split(given)
    if name not in unit.factors:
        raise UnitError(_wrong_unit(given, unit))
    value = _EXACTLY.multiply(Decimal(number), unit.factors[name])
    if abs(value) > MAX_VALUE:
        raise UnitError(f"expected {unit.name} of a sensible size, got {shown(given)}")
    return value


def _whole(given: object, unit: Unit) -> int:
    value = _exact(given, unit)
    if value != value.to_integral_value():
        raise UnitError(f"expected a whole multiple of {unit.base}, got {shown(given)}")
    return int(value)


def _refuse_negative(given: object, unit: Unit) -> None:
    if _exact(given, unit) < 0:
        raise UnitError(f"expected {unit.name} that is not negative, got {shown(given)}")


def _split(given: object) -> tuple[str, str]:
    """Number and unit as written; two empty texts when the value is no quantity."""
    if not isinstance(given, str) or len(given) > MAX_TEXT:
        return "", ""
    match = _QUANTITY.fullmatch(given)
    return ("", "") if match is None else (match[1], match[2] or "")


def _wrong_unit(given: object, unit: Unit) -> str:
    allowed = f"units: {', '.join(unit.factors)}"
    if unit is RATIO:
        allowed = "a plain number is not taken: 0.01 could mean 1 % or 0.01 %"
    return f"expected {unit.name} such as '{unit.example}' ({allowed}), got {shown(given)}"


def _formatted(value: int, unit: Unit, names: Sequence[str]) -> str:
    """Value in the first unit, from large to small, in which the number is at least 1; 0 takes the last."""
    for name in names:
        if abs(value) >= unit.factors[name]:
            return f"{_plain(_EXACTLY.divide(Decimal(value), unit.factors[name]))} {name}"
    return f"0 {names[-1]}"


def _plain(number: Decimal) -> str:
    """Number without exponent and without trailing zeros."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
