"""Tables of sweeps: runs that differ in their seed alone stand together, and blocks are written shortly."""

from __future__ import annotations

from typing import Any

from testbed.cli.listings import over_seeds, setting


def point(rate: str, seed: int, delay_ms: float | None, verdict: str = "pass") -> dict[str, Any]:
    variant = {"protocol": {"name": "sequencer"}, "workload.rate": rate, "seed": seed}
    return {"variant": variant, "given": {}, "verdict": verdict, "p50_ms": delay_ms, "directory": None}


def test_runs_of_one_point_become_a_mean_with_its_interval() -> None:
    slow, fast = over_seeds(
        [point("1 /s", 1, 3.0), point("1 /s", 2, 5.0, "fail"), point("9 /s", 1, 1.0), point("9 /s", 2, 1.0)]
    )
    assert slow["variant"] == {"protocol": {"name": "sequencer"}, "workload.rate": "1 /s", "seed": "2 seeds"}
    assert (slow["verdict"], slow["p50_ms"]) == ("fail", "4 ± 13")
    assert (fast["verdict"], fast["p50_ms"]) == ("pass", "1 ± 0")


def test_what_one_of_them_did_not_measure_has_no_mean() -> None:
    (both,) = over_seeds([point("1 /s", 1, 3.0), point("1 /s", 2, None)])
    assert both["p50_ms"] is None


def test_a_run_with_no_other_of_its_kind_stands_as_it_is() -> None:
    alone = point("1 /s", 1, 3.0)
    assert over_seeds([alone]) == [alone]
    assert over_seeds([]) == []


def test_settings_are_short() -> None:
    assert setting("1 /s") == "1 /s"
    assert setting({"name": "atop"}) == "atop"
    assert setting({"name": "atop", "parameters": {"window": "9 s"}}) == "{name: atop, parameters: {window: 9 s}}"
    assert setting([1, 2]) == "[1, 2]"
