"""Numbers and names in readable form."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import formatting as words

NOT_NUMBERS: list[object] = [None, "5", True, math.nan, math.inf, [], {}, 10**400]


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_what_is_no_number_reads_as_missing(value: object) -> None:
    for say in (words.count, words.significant, words.milliseconds, words.percent, words.size, words.bit_rate):
        assert say(value) == words.MISSING


@pytest.mark.parametrize(
    ("say", "value", "expected"),
    [
        (words.count, 12345.0, "12,345"),
        (words.significant, 0.01234, "0.0123"),
        (words.significant, 5.138, "5.14"),
        (words.significant, 1234.5, "1,234"),
        (words.significant, 0, "0"),
        (words.significant, -2.5, "-2.50"),
        (words.milliseconds, 5.138, "5.14 ms"),
        (words.milliseconds, 1523.9, "1.52 s"),
        (words.milliseconds, 0.84, "840 us"),
        (words.milliseconds, 0, "0 ms"),
        (words.nanoseconds, 5_000_000, "5.00 ms"),
        (words.cost_rate, 350_057_741.5, "350 ms/s"),
        (words.cost_rate, None, "–"),
        (words.protocol, "timewarp", "Time Warp"),
        (words.protocol, "something new", "something new"),
        (words.protocol, None, "–"),
        (words.percent, 0.0102, "1.02 %"),
        (words.size, 456.3, "456 B"),
        (words.size, 38_220_114, "38.2 MB"),
        (words.bit_rate, 10_000_000, "10 Mbit/s"),
        (words.bit_rate, 500_000, "500 kbit/s"),
        (words.plain, 0.1, "0.1"),
        (words.impairment, {}, []),
        (words.impairment, {"delay_ns": 5_000_000}, ["5 ms"]),
        (
            words.impairment,
            {"delay_ns": 5_000_000, "jitter_ns": 1_500_000, "distribution": "normal", "loss_ratio": 0.01},
            ["5 ms ± 1.5 ms (normal)", "1 % loss"],
        ),
        (words.impairment, {"loss_ratio": 0.02, "loss_burst_frames": 3.0}, ["2 % loss in bursts of 3"]),
        (words.impairment, {"rate_bps": 500_000, "queue_frames": 20}, ["500 kbit/s, queue 20 frames"]),
        (words.impairment, {"rate_bps": 1_000_000, "queue_bytes": 64_000}, ["1 Mbit/s, queue 64 kB"]),
        (words.impairment, {"duplicate_ratio": 0.001, "corrupt_ratio": 0.5}, ["0.1 % duplicated", "50 % corrupted"]),
        (words.impairment, {"delay_ns": "much", "loss_ratio": None}, []),
        (words.impairment, "nonsense", []),
        (words.fault, {"kind": "impair", "parameters": {"loss_ratio": 0.1}}, "10 % loss"),
        (words.fault, {"kind": "impair", "parameters": {}}, "impairment lifted"),
        (words.fault, {"kind": "crash"}, "crash"),
        (words.fault, {"kind": "cut", "parameters": {"groups": [["a"], ["b", "c"]]}}, "cut a | b, c"),
        (words.fault, {"kind": "cut", "parameters": {"pairs": [["a", "b"]]}}, "cut 1 one-way path"),
        (words.fault, {"kind": "cut", "parameters": {"groups": [3, []]}}, "cut nobody | nobody"),
        (words.fault, {}, "fault"),
        (words.listed, ["a", "b"], "a, b"),
        (words.listed, ["a", "b", "c", "d", "e", "f"], "a, b, c and 3 more"),
        (words.clean, "a\x1b[2Jb\u202ec\x00\nd\u200be", "a[2Jbc de"),
    ],
)
def test_the_readable_form(say: Any, value: object, expected: object) -> None:
    assert say(value) == expected


def test_long_texts_are_cut_and_deep_values_are_not_followed() -> None:
    assert words.clean("x" * 1000, 10) == "xxxxxxxxx…"
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert words.clean({"a": deep, "b": 1}) == "a=[…], b=1"


@given(st.text(), st.integers(1, 40))
def test_a_clean_text_is_one_printable_line(text: str, limit: int) -> None:
    shown = words.clean(text, limit)
    assert len(shown) <= limit
    assert all(unicodedata.category(character)[0] != "C" for character in shown)
    assert shown == shown.strip()
