"""Overload is judged from the machine's own accounting."""

from __future__ import annotations

from pathlib import Path

from testbed.run.health import CPU_BUSY_RATIO_MAX, LAG_MAX_NS, CpuTimes, judge, summarize


def test_cpu_times_are_read_from_proc_stat(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 10 50 800 40 1 2 7 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    times = CpuTimes.read(stat)
    assert times == CpuTimes(total=1010, idle=840, steal=7)


def test_ratios_are_of_the_time_between_two_readings() -> None:
    before = CpuTimes(total=1000, idle=900, steal=0)
    after = CpuTimes(total=2000, idle=1150, steal=100)
    assert after.busy_ratio_since(before) == 0.75
    assert after.steal_ratio_since(before) == 0.1
    assert before.busy_ratio_since(before) == 0.0
    assert summarize(before, after, 5) == {"cpu_busy_ratio": 0.75, "steal_ratio": 0.1, "lag_max_ns": 5}


def test_a_fit_machine_has_no_reasons() -> None:
    assert judge(cpu_busy_ratio=0.5, steal_ratio=0.0, lag_max_ns=LAG_MAX_NS, saturating=False) == []


def test_each_overload_is_named() -> None:
    reasons = judge(
        cpu_busy_ratio=CPU_BUSY_RATIO_MAX + 0.01, steal_ratio=0.5, lag_max_ns=LAG_MAX_NS * 2, saturating=False
    )
    assert len(reasons) == 3
    assert "hypervisor" in reasons[0]
    assert "CPUs were busy" in reasons[1]
    assert "500 ms behind" in reasons[2]


def test_a_saturating_load_is_behind_on_purpose() -> None:
    assert judge(cpu_busy_ratio=1.0, steal_ratio=0.0, lag_max_ns=10**10, saturating=True) == []


def test_the_real_machine_can_be_read() -> None:
    first = CpuTimes.read()
    assert first.total >= first.idle > 0
