"""Expressions over results: values, reasons for unknown values, and no access to anything outside the results."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.expression import (
    ALLOWED,
    FUNCTIONS,
    MAX_TEXT,
    Expression,
    ExpressionError,
    Unknown,
    condition,
    evaluate,
    misnamed,
    parse,
    subject,
    summary_names,
)

RESULTS: dict[str, Any] = {
    "verdict": "pass",
    "valid": True,
    "latency": {
        "p50_ms": 10.5,
        "p99_ms": 61.2,
        "jitter_ms": None,
        "nothing": float("nan"),
        "by_member": [{"member": "p1/n1", "p99_ms": 40.0}, {"member": "p1/n2", "p99_ms": 60.0}],
    },
    "properties": {
        "total_order": {"verdict": "pass", "violations": 0},
        "fifo": {"verdict": "unknown", "violations": 0},
    },
    "huge": [10**400, 1],
    "messages": {"submitted": 100, "deliveries": 400},
    "links": [],
    "days": [{"hours": [{"t": 0, "cost": 1}, {"t": 1, "cost": 2}]}, {"hours": [{"t": 0, "cost": 5}]}],
    "runs": [{"latency": {"p50_ms": 1}}, {"latency": {"p50_ms": 2, "by_member": []}}, {"latency": {"p50_ms": 4}}],
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("latency.p99_ms", 61.2),
        ("latency['p99_ms']", 61.2),
        ("latency.by_member[1].member", "p1/n2"),
        ("latency.by_member[-1]['p99_ms']", 60.0),
        ("latency.by_member.p99_ms", [40.0, 60.0]),
        ("max(latency.by_member.p99_ms)", 60.0),
        ("max(runs.latency.p50_ms) / min(runs.latency.p50_ms)", 4.0),
        ("sum(latency.by_member.p99_ms) / len(latency.by_member)", 50.0),
        ("len(links)", 0),
        ("len(where(links, loss_ratio > 1))", 0),
        ("len(where(runs, latency.p50_ms > 9))", 0),
        ("len(where(where(runs, latency.p50_ms > 1), latency.p50_ms > 9))", 0),
        ("len(where(runs[1].latency.by_member, p50_ms > 9))", 0),
        ("len(latency)", 5),
        ("abs(-3)", 3),
        ("min(3, 1, 2)", 1),
        ("messages.deliveries / messages.submitted - 1", 3.0),
        ("2 ** 10", 1024.0),
        ("-messages.submitted + +1", -99),
        ("runs.latency.p50_ms * 2 - 1", [1, 3, 7]),
        ("10 / runs.latency.p50_ms", [10.0, 5.0, 2.5]),
        ("max(abs(runs.latency.p50_ms - 2))", 2),
        ("mean(runs.latency.p50_ms)", 7 / 3),
        ("slope(runs.latency.p50_ms, 3 * runs.latency.p50_ms + 1)", 3.0),
        ("r_squared(runs.latency.p50_ms, 3 * runs.latency.p50_ms + 1)", 1.0),
        ("sum(days.hours.cost)", [3, 5]),
        ("max(where(days.hours, t < 1).cost)", [1, 5]),
        ("len(days.hours)", 2),
        ("sum(days.hours.cost) / sum(where(days.hours, t == 0).cost)", [3.0, 1.0]),
        ("min(runs.latency.p50_ms, 3 - runs.latency.p50_ms)", [1, 1, -1]),
        ("  1 + 1  ", 2),
        ("'text'", "text"),
        ("not valid", False),
    ],
)
def test_evaluates(text: str, value: object) -> None:
    assert evaluate(parse(text), RESULTS) == value


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("latency.p99_ms <= 80", True),
        ("latency.p99_ms <= 60", False),
        ("10 < latency.p50_ms < 11", True),
        ("10 < latency.p50_ms < 10.2", False),
        ("properties.total_order.verdict == 'pass'", True),
        ("verdict != 'pass' or valid", True),
        ("properties.fifo.verdict == 'unknown' and 'unknown' == properties.fifo.verdict", True),
        ("verdict == 'unknown'", False),
        ("valid and messages.deliveries == 4 * messages.submitted", True),
        ("not (valid and verdict == 'fail')", True),
        ("valid == True", True),
        ("'a' < 'b'", True),
        ("1 == 1.0", True),
        # An unknown part does not matter when another decides.
        ("latency.missing > 1 and not valid", False),
        ("not valid and latency.missing > 1", False),
        ("latency.missing > 1 or valid", True),
        ("valid or latency.missing > 1", True),
        ("not (latency.missing > 1 and not valid)", True),
    ],
)
def test_answers_conditions(text: str, answer: bool) -> None:
    assert condition(parse(text), RESULTS) is answer


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("latency.p98_ms <= 80", "latency has no p98_ms; did you mean p99_ms?"),
        ("latensy.p99_ms <= 80", "this run has no latensy; did you mean latency?"),
        ("latency.p99_ms.x <= 80", "latency.p99_ms is 61.2 and has no x"),
        ("latency.by_member[2].p99_ms > 0", "latency.by_member has 2 items, none at 2"),
        ("latency.by_member[0.5] == 0", "latency.by_member has no place 0.5"),
        ("latency.by_member[True] == 0", "latency.by_member has no place true"),
        ("verdict[0] == 'p'", "verdict has no place 0"),
        ("latency.jitter_ms < 5", "a value beside < was not measured"),
        ("latency.nothing < 5", "a value beside < was not measured"),
        ("latency.jitter_ms * 2 < 5", "a value in the formula was not measured"),
        ("latency.nothing * 2 < 5", "a value in the formula was not measured"),
        ("properties.fifo.verdict == 'pass'", "the verdict is unknown itself"),
        ("properties.fifo.verdict == properties.fifo.verdict", "the verdict is unknown itself"),
        ("properties.total_order.verdict != properties.fifo.verdict", "the verdict is unknown itself"),
        ("len(properties.fifo.verdict) == 7", "len takes a list, not 'unknown'"),
        ("properties.fifo.verdict != 'fail'", "the verdict is unknown itself"),
        ("properties.fifo.violations == 0", "the verdict of properties.fifo is unknown, and so are its violations"),
        ("sum(links.loss_ratio) == 0", "sum of an empty list has no value"),
        ("sum(where(runs, latency.p50_ms > 9).latency.p50_ms) == 0", "sum of an empty list has no value"),
        (
            "len(where(where(runs, latency.p50_ms == 300), latency.p50_ms > 9)) == 0",
            "where(runs, latency.p50_ms == 300) finds nothing to select from",
        ),
        (
            "len(where(where(days.hours, t > 0), cost > 9)) == 0",
            "where(days.hours, t > 0) finds nothing to select from",
        ),
        ("len(where(latency.jitter_ms, loss_ratio > 1)) == 0", "where takes a list of runs, not nothing"),
        (
            "len(where(days, estimate(hours.cost).high > 0)) > 0",
            "an interval needs values of runs with different seeds",
        ),
        ("max(sum(where(days.hours, t > 9).cost)) <= 0", "sum of an empty list has no value"),
        ("mean(1e308, 1e308) > 1", "mean of numbers as great as these has no value"),
        ("slope(huge, huge) > 1", "slope of numbers as great as these has no value"),
        ("estimate(huge).mean > 1", "an interval needs values of runs with different seeds"),
        ("verdict < 5", "'pass' < 5 cannot be compared"),
        ("valid == 1", "true == 1 cannot be compared"),
        ("valid < True", "true < true cannot be compared"),
        ("latency == latency", "a block of keys == a block of keys cannot be compared"),
        ("verdict + 'x' == 'passx'", "'pass' is not a number"),
        ("valid + 1 == 2", "true is not a number"),
        ("1 / 0 == 1", "1 / 0 has no value"),
        ("9 ** 9 ** 9 > 1", "9 ** 387420489.0 has no value"),
        ("(-8) ** 0.5 > 1", "-8 ** 0.5 has no value"),
        ("latency.p50_ms", "latency.p50_ms is 10.5, not a condition; compare it with something"),
        ("verdict and valid", "'pass' is neither true nor false"),
        ("not verdict", "'pass' is neither true nor false"),
        ("max(links) > 1", "max of an empty list has no value"),
        ("max(latency) > 1", "max takes a list, not a block of keys"),
        ("sum(latency.by_member.member) > 1", "'p1/n1' is not a number"),
        ("sum(3) > 1", "sum takes a list, not 3"),
        ("abs(1, 2) > 1", "abs takes one number or one list"),
        ("min(runs.latency.p50_ms, latency.by_member.p99_ms) > 1", "min takes lists of one length"),
        ("sum(where(days.hours, t >= 0).cost) > 1", "a list > 1 cannot be compared"),
        ("max(where(days.hours, t > 0).cost) > 1", "max of an empty list has no value"),
        ("slope(runs.latency.p50_ms, 1) > 1", "slope takes two lists, of x and of y"),
        ("slope(links, links) > 1", "slope has no value: linear regression requires at least two data points"),
        ("mean(runs.latency.p50_ms - days) > 1", "lists of 3 and 2 items cannot be computed item by item"),
        # An unknown part matters when nothing else decides.
        ("latency.missing > 1 and valid", "latency has no missing"),
        ("latency.missing > 1 or not valid", "latency has no missing"),
        # No attribute of an object can be reached.
        ("latency.__class__ == 1", "latency has no __class__"),
        ("verdict.upper == 1", "verdict is 'pass' and has no upper"),
        ("links.__len__ == 0", "a list == 0 cannot be compared"),
        ("runs.latency.keys == 1", "runs.latency has no keys"),
    ],
)
def test_says_why_it_cannot_tell(text: str, reason: str) -> None:
    assert condition(parse(text), RESULTS) == Unknown(reason=reason)


SWEPT: dict[str, Any] = {
    "runs": [
        {
            "variant": {"seed": seed, "workload.rate": rate},
            "given": {"rate_per_s": rate, "members": 3},
            "latency": {
                "p50_ms": 10.0 + seed + rate,
                "max_ms": 50 + seed * rate,
                "by_member": [{"p50_ms": 1.0 * seed}],
            },
        }
        for rate in (1, 2, 3)
        for seed in (1, 2, 3)
    ]
}


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("estimate({one}.latency.p50_ms)", None),
        ("estimate({one}.latency.p50_ms / {two}.latency.max_ms)", None),
        ("estimate(max(runs.latency.by_member.p50_ms), runs.given.rate_per_s)", None),
        ("estimate(abs(0 - runs.latency.max_ms) / runs[0].given.members, runs.given.rate_per_s)", None),
        ("estimate(min(runs.latency.p50_ms, runs.latency.max_ms), runs.given.rate_per_s)", None),
        ("estimate(runs.latency.p50_ms)", 3),
        ("estimate(runs.latency.p50_ms, runs.variant.seed)", 1),
        ("estimate(where(runs, variant.seed == 1).latency.p50_ms)", 1),
        ("estimate(runs[0].latency.p50_ms * {one}.latency.p50_ms)", 3),
        ("estimate({one}.latency.p50_ms - mean(runs.latency.p50_ms))", 3),
        ("estimate({one}.latency.max_ms / slope(runs.latency.p50_ms, runs.latency.max_ms))", 3),
        ("estimate({one}.latency.p50_ms - abs(runs[0].latency.max_ms))", 3),
        ("estimate({one}.latency.p50_ms + -runs[0].latency.max_ms)", 3),
        ("estimate({one}.given.members)", 0),
    ],
)
def test_an_interval_is_over_values_of_runs_with_different_seeds(text: str, seeds: int | None) -> None:
    one, two = (f"where(runs, given.rate_per_s == {rate})" for rate in (1, 2))
    value = evaluate(parse(text.format(one=one, two=two)), SWEPT)
    told = value.reason if isinstance(value, Unknown) else None
    if seeds is None:
        assert told is None
    elif seeds == 0:
        assert told == "an interval needs values of runs with different seeds"
    else:
        assert f" of {seeds} seed{'' if seeds == 1 else 's'} are not independent" in (told or "")


def test_an_interval_of_great_numbers_has_no_value() -> None:
    great = {"runs": [{"variant": {"seed": seed}, "huge": 10**400} for seed in (1, 2)]}
    reason = "estimate of numbers as great as these has no value"
    assert evaluate(parse("estimate(runs.huge)"), great) == Unknown(reason=reason)


def test_a_value_does_not_keep_its_seeds() -> None:
    texts = (
        "runs[0].latency.p50_ms",
        "runs.latency.max_ms[0]",
        "runs[0].latency",
        "estimate(runs.latency.p50_ms, runs.given.rate_per_s)[0].at",
    )
    assert [type(evaluate(parse(text), SWEPT)) for text in texts] == [float, int, dict, int]
    assert {type(one) for one in evaluate(parse("2 * runs.latency.p50_ms"), SWEPT)} == {float}
    assert evaluate(parse("runs[runs[0].latency.max_ms - 51].variant.seed"), SWEPT) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("latency.p99_ms <= 80", 61.2),
        ("80 >= latency.p99_ms", 61.2),
        ("5 < latency.p50_ms < 20", 10.5),
        ("valid", True),
        ("1 < 2", True),
        ("latency.missing < 2", Unknown(reason="latency has no missing")),
    ],
)
def test_the_subject_is_what_the_condition_is_about(text: str, value: object) -> None:
    assert subject(parse(text), RESULTS) == value


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", f"'' is no expression: invalid syntax (allowed: {ALLOWED})"),
        ("a <", f"'a <' is no expression: invalid syntax (allowed: {ALLOWED})"),
        ("__import__('os')", f"only {FUNCTIONS} can be called, not \"__import__('os')\""),
        ("a.b()", f"only {FUNCTIONS} can be called, not 'a.b()'"),
        ("max()", f"only {FUNCTIONS} can be called, not 'max()'"),
        ("max(a, key=b)", f"only {FUNCTIONS} can be called, not 'max(a, key=b)'"),
        *(
            (text, f"{shown} is not taken in an expression (allowed: {ALLOWED})")
            for text, shown in (
                *(("[1, 2]", "'[1, 2]'"), ("(x for x in y)", "'(x for x in y)'"), ("lambda: 1", "'lambda: 1'")),
                *(("1 if a else 2", "'1 if a else 2'"), ("f'{a}'", "\"f'{a}'\""), ("a[1:2]", "'1:2'")),
                *(("a in b", "in"), ("a // b", "floordiv"), ("~a", "invert")),
                *(("None", "'None'"), ("b'x'", "\"b'x'\""), ("1j", "'1j'")),
            )
        ),
        *(
            (text, "a verdict is pass, fail or unknown, not 'failed'")
            for text in (
                "verdict != 'failed'",
                "'failed' != properties.total_order.verdict or valid",
                "len(where(links, links[0]['verdict'] == 'failed')) == 0",
                "'pass' == links[0].verdict == 'failed'",
            )
        ),
        ("-" * 100 + "1", "expected at most 64 nested operations in an expression"),
        ("a" * (MAX_TEXT + 1), f"expected an expression of at most {MAX_TEXT} characters, got {MAX_TEXT + 1}"),
    ],
)
def test_refuses_everything_else(text: str, sentence: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("text", ["(" * 400, "a\0b", "'\\d' == valid", "1if valid else 2"])
def test_odd_texts_are_read_or_refused_without_warnings(text: str) -> None:
    try:
        parse(text)
    except ExpressionError as error:
        assert "is no expression" in str(error) or "is not taken" in str(error)


@pytest.mark.parametrize(
    ("text", "may_be"),
    [("a <= 1", True), ("a", True), ("a.b[0]", True), ("not a", True), ("a and b", True), ("True", True),
     ("a + 1", False), ("max(a)", False), ("-a", False), ("1", False), ("'x'", False)],
)  # fmt: skip
def test_knows_what_may_be_a_condition(text: str, may_be: bool) -> None:
    assert parse(text).may_be_condition is may_be


@pytest.mark.parametrize(
    "text",
    [
        "latency.p99_ms <= 80",
        "max(links[0].loss_ratio, load.lan_load) < faults[load.messages].frames or calls.calls > 3",
        "links[1].asked.delay_ns > 3 and load.messages_by_kind['TRIAL_1'] == 0",
        "mean(where(links, direction == 'to-node' and frames > 3).loss_ratio) < 0.1",
        "estimate(links.loss_ratio, links.frames).mean > 0",
        "properties.total_order.witness.places[0].member == 'p1/n1'",
        "faults[1].latency.during.p99_ms < 300",
        "3 < 4",
    ],
)
def test_names_of_a_summary_are_known(text: str) -> None:
    assert misnamed(parse(text), summary_names()) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("3 < 4 or latncy.p99_ms", "a run has no 'latncy'; did you mean latency?"),
        ("latency['p9_ms'] > 3", "latency has no 'p9_ms'; did you mean p99_ms?"),
        ("latency.p99_ms.value > 3", "latency.p99_ms has no 'value'"),
        ("-abs(faults[0].latency.durng.p99_ms) < 3", "faults[0].latency has no 'durng'; did you mean during?"),
        ("faults[links[0].nothing].id == 3", "links[0] has no 'nothing'; it has node, direction, "),
        ("len(where(links, latency.p50_ms > 3)) > 3", "links has no 'latency'; it has node, direction, "),
        ("capture.frames == 3 and health.x", "health has no 'x'; it has cpu_busy_ratio, lag_max_ms, stalls, stall_max"),
    ],
)
def test_a_name_that_no_summary_has_is_told(text: str, sentence: str) -> None:
    assert (misnamed(parse(text), summary_names()) or "").startswith(sentence)


def test_an_expression_is_a_value() -> None:
    expression = parse(" latency.p99_ms <= 80 ")
    assert str(expression) == "latency.p99_ms <= 80"
    assert expression == parse("latency.p99_ms <= 80")
    assert len({expression, parse("latency.p99_ms <= 80"), parse("valid")}) == 2
    copied: Expression = pickle.loads(pickle.dumps(expression))
    assert condition(copied, RESULTS) is True


NUMBERS = st.integers(-1000, 1000) | st.floats(-1000, 1000)


@given(NUMBERS, NUMBERS, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]))
def test_comparisons_agree_with_python(left: float, right: float, sign: str) -> None:
    expected = {
        "<": left < right, "<=": left <= right, "==": left == right,
        "!=": left != right, ">": left > right, ">=": left >= right,
    }[sign]  # fmt: skip
    assert condition(parse(f"a {sign} b"), {"a": left, "b": right}) is expected
