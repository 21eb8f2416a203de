"""Quantities: exact values, exact refusals, and a written quantity is read back."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.formats import units
from topologies.formats.units import QueueLimit, UnitError, printable

NOT_NEGATIVE = st.integers(min_value=0, max_value=units.MAX_VALUE)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_duration, "20 ms", 20_000_000),
        (units.parse_duration, "1.5 s", 1_500_000_000),
        (units.parse_duration, "300us", 300_000),
        (units.parse_duration, "10 ns", 10),
        (units.parse_duration, "2 min", 120_000_000_000),
        (units.parse_duration, "1 h", 3_600_000_000_000),
        (units.parse_duration, "0.1 us", 100),
        (units.parse_duration, 0, 0),
        (units.parse_offset, "-5 ms", -5_000_000),
        (units.parse_rate, "10 Mbit/s", 10_000_000),
        (units.parse_rate, "1 Gbit/s", 1_000_000_000),
        (units.parse_rate, "64 kbit/s", 64_000),
        (units.parse_rate, "1.25 MB/s", 10_000_000),
        (units.parse_size, "64 kB", 64_000),
        (units.parse_size, "64 KiB", 65_536),
        (units.parse_size, "1500 B", 1500),
        (units.parse_ratio, "1 %", 0.01),
        (units.parse_ratio, "0.5 %", 0.005),
        (units.parse_ratio, "100 %", 1.0),
        (units.parse_ratio, 0, 0.0),
        (units.parse_frames, "20 frames", 20),
        (units.parse_frames, "1 frame", 1),
        (units.parse_burst, "2.5 frames", 2.5),
        (units.parse_queue, "20 frames", QueueLimit(frames=20)),
        (units.parse_queue, "64 kB", QueueLimit(size_bytes=64_000)),
        (units.parse_queue, "unlimited", QueueLimit()),
        (units.parse_event_rate, "50 /s", 50.0),
        (units.parse_event_rate, "0.5/s", 0.5),
        (units.parse_drift, "-50 ppm", -50.0),
        (units.parse_drift, "10 ppb", 0.01),
    ],
)
def test_reads_quantities(parse: Callable[[object], object], text: object, value: object) -> None:
    assert parse(text) == value


DURATION = "a duration such as '20 ms' (units: ns, us, ms, s, min, h)"


@pytest.mark.parametrize(("parse", "text", "expected", "got"), [
    (units.parse_duration, "5 Mbit/s", DURATION, "'5 Mbit/s'"),
    (units.parse_duration, 5, DURATION, "5"),
    (units.parse_duration, None, DURATION, "nothing"),
    (units.parse_duration, True, DURATION, "true"),
    (units.parse_duration, ["1 s"], DURATION, "a list"),
    (units.parse_duration, "300 h 5", DURATION, "'300 h 5'"),
    (units.parse_duration, "0.5 ns", "a whole multiple of 1 ns", "'0.5 ns'"),
    (units.parse_duration, "-1 s", "a duration that is not negative", "'-1 s'"),
    (units.parse_duration, "9223372037 s", "a duration of a sensible size", "'9223372037 s'"),
    (units.parse_rate, "10 Mbps",
     "a rate such as '10 Mbit/s' (units: bit/s, kbit/s, Mbit/s, Gbit/s, B/s, kB/s, MB/s, GB/s)", "'10 Mbps'"),
    (units.parse_rate, "0 bit/s", "a rate above 0", "'0 bit/s'"),
    (units.parse_rate, "0.1 bit/s", "a whole multiple of 1 bit/s", "'0.1 bit/s'"),
    (units.parse_ratio, 0.01,
     "a ratio such as '1 %' (a plain number is not taken: 0.01 could mean 1 % or 0.01 %)", "0.01"),
    (units.parse_ratio, "101 %", "a ratio between 0 % and 100 %", "'101 %'"),
    (units.parse_ratio, "-1 %", "a ratio between 0 % and 100 %", "'-1 %'"),
    (units.parse_size, "64 kb", "a size such as '1500 B' (units: B, kB, MB, GB, KiB, MiB, GiB)", "'64 kb'"),
    (units.parse_queue, 20, "a queue limit such as '20 frames' or '64 kB' "
     "(units: frames, B, kB, MB, GB, KiB, MiB, GiB; or unlimited)", "20"),
    (units.parse_queue, "0 frames", "at least 1 frame", "'0 frames'"),
    (units.parse_queue, "0 B", "a queue of at least 1 B", "'0 B'"),
    (units.parse_frames, "1.5 frames", "a whole multiple of 1 frame", "'1.5 frames'"),
    (units.parse_burst, "0.5 frames", "a mean burst of at least 1 frame", "'0.5 frames'"),
    (units.parse_event_rate, "50 Hz", "an event rate such as '50 /s' (units: /s)", "'50 Hz'"),
    (units.parse_event_rate, "-1 /s", "an event rate that is not negative", "'-1 /s'"),
])  # fmt: skip
def test_says_what_is_allowed(parse: Callable[[object], object], text: object, expected: str, got: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse(text)
    assert str(caught.value) == f"expected {expected}, got {got}"


def test_arithmetic_does_not_round() -> None:
    digits_beyond_the_default_context = "1.0000000000000000000000000000001 s"
    with pytest.raises(UnitError, match="whole multiple of 1 ns"):
        units.parse_duration(digits_beyond_the_default_context)
    assert units.parse_duration("0.000000003 s") == 3


@pytest.mark.parametrize(("parse", "write", "values"), [
    (units.parse_duration, units.format_duration, NOT_NEGATIVE),
    (units.parse_offset, units.format_duration, st.integers(min_value=-units.MAX_VALUE, max_value=units.MAX_VALUE)),
    (units.parse_rate, units.format_rate, st.integers(min_value=1, max_value=units.MAX_VALUE)),
    (units.parse_size, units.format_size, NOT_NEGATIVE),
    (units.parse_ratio, units.format_ratio, st.floats(min_value=1e-9, max_value=1.0) | st.just(0.0)),
    (units.parse_burst, units.format_frames, st.floats(min_value=1.0, max_value=1e9)),
    (units.parse_event_rate, units.format_event_rate, st.floats(min_value=1e-6, max_value=1e9) | st.just(0.0)),
    (units.parse_drift, units.format_drift,
     st.floats(min_value=-1e6, max_value=1e6).filter(lambda drift: drift == 0 or abs(drift) > 1e-9)),
    (units.parse_queue, units.format_queue, st.one_of(
        st.builds(QueueLimit, frames=st.integers(min_value=1, max_value=10**9)),
        st.builds(QueueLimit, size_bytes=st.integers(min_value=1, max_value=10**12)),
        st.just(QueueLimit()),
    )),
])  # fmt: skip
@given(data=st.data())
def test_what_is_written_is_read_back(
    parse: Callable[[object], object],
    write: Callable[[object], str],
    values: st.SearchStrategy[object],
    data: st.DataObject,
) -> None:
    value = data.draw(values)
    assert parse(write(value)) == value


@pytest.mark.parametrize(
    ("text", "formatted"), [("1500 us", "1.5 ms"), ("90 s", "90 s"), ("999 ns", "999 ns"), ("0 s", "0 ns")]
)
def test_formats_in_the_largest_fitting_unit(text: str, formatted: str) -> None:
    assert units.format_duration(units.parse_duration(text)) == formatted


def test_formats_sizes_in_the_shorter_way() -> None:
    assert [units.format_size(size) for size in (64_000, 65_536, 256_000, 1024, 1, 0)] == [
        "64 kB", "64 KiB", "256 kB", "1 KiB", "1 B", "0 B",
    ]  # fmt: skip


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text())


PARSERS = [
    units.parse_duration, units.parse_offset, units.parse_rate, units.parse_size, units.parse_ratio,
    units.parse_frames, units.parse_burst, units.parse_queue, units.parse_event_rate, units.parse_drift,
]  # fmt: skip


@given(ANYTHING)
@pytest.mark.parametrize("parse", PARSERS)
def test_anything_is_read_or_refused_in_one_line(parse: Callable[[object], object], anything: object) -> None:
    try:
        parse(anything)
    except UnitError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 300


@given(st.integers(min_value=0, max_value=10**6), st.sampled_from(sorted(units.DURATION.factors)))
def test_the_pattern_for_editors_agrees_with_the_parser(number: int, unit: str) -> None:
    assert re.fullmatch(units.DURATION.pattern, f"{number} {unit}")
    assert not re.fullmatch(units.DURATION.pattern, f"{number} {unit}x")


def test_what_a_stranger_wrote_does_nothing_to_a_terminal() -> None:
    written = "loss 5\u202f% \x1b[31mred\x1b]0;title\x07 \u202egnol\r\tend\nnext"
    assert printable(written) == "loss 5\u202f% \ufffd[31mred\ufffd]0;title\ufffd \ufffdgnol\ufffd\ufffdend\nnext"
