"""Mutation test of the measurements: single edits of metrics and of the judgement of networks, each noticed by a test
of the module named beside it.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import pytest

from analysis import requested_network
from analysis.metrics import estimate, skew
from analysis.network import accuracy, conservation, media, realised
from tests.analysis.edits import Edit
from tests.analysis.metrics import test_estimate, test_skew
from tests.analysis.network import test_conservation, test_media, test_rates, test_realised

EDITS: tuple[tuple[ModuleType, Edit], ...] = (
    (test_realised, Edit(realised._longest_stall_ns, "interval.until_ns) & (", "interval.until_ns) | (")),
    (test_realised, Edit(realised._next_lost, "1.0 - path.corrupt_ratio", "1.0 + path.corrupt_ratio")),
    (test_realised, Edit(realised._next_lost, "if one.loss_ratio", "")),
    (test_realised, Edit(realised._harm, "* len(damage)", "/ len(damage)")),
    (test_realised, Edit(accuracy._corruption, "+ _copied_elsewhere(realised)", "- _copied_elsewhere(realised)")),
    (test_realised, Edit(accuracy._reordering, "1 + one.duplicate_ratio", "1")),
    (test_realised, Edit(accuracy._reordering, "rest.has_jitter or rest.has_queue", "rest.has_jitter")),
    (test_rates, Edit(realised._passed, "~samples.is_multicast | np", "samples.is_multicast | np")),
    (test_realised, Edit(accuracy.judge, "if realised.leaked:", "if False:")),
    (test_realised, Edit(accuracy.judge, "frames < ENOUGH_FRAMES", "frames < 1")),
    (test_realised, Edit(accuracy.judge, "*_delay(realised),", "")),
    (test_realised, Edit(accuracy.judge, "*_loss(realised.losses, realised),", "")),
    (test_realised, Edit(accuracy.judge, "*_bursts(realised.losses, realised),", "")),
    (test_realised, Edit(accuracy.judge, "*_duplicates(realised.losses, realised),", "")),
    (test_realised, Edit(accuracy.judge, "*_rate(realised),", "")),
    (test_realised, Edit(accuracy.judge, "*_reordering(realised),", "")),
    (test_realised, Edit(accuracy.judge, "*_corruption(realised.losses, realised),", "")),
    (test_realised, Edit(accuracy._late, "MEDIAN_ABOVE_NS if", "2 * MEDIAN_ABOVE_NS if")),
    (test_realised, Edit(accuracy._late, "else TAIL_ABOVE_NS", "else 2 * TAIL_ABOVE_NS")),
    (test_realised, Edit(accuracy._early, "slack_ns = EARLY_NS", "slack_ns = 2 * EARLY_NS")),
    (test_realised, Edit(accuracy._early, "PART_OF_JITTER *", "4 * PART_OF_JITTER *")),
    (test_realised, Edit(accuracy._reordering, "LEAST_SKIPPED * asked", "0 * asked")),
    (test_realised, Edit(accuracy._reordering, "low > most and", "False and")),
    (test_realised, Edit(accuracy._reordering, "and not is_thinned", "")),
    (test_realised, Edit(accuracy._reordering, "wilson(delays.skipped,", "wilson(delays.early,")),
    (test_realised, Edit(accuracy._reordering, "wilson(delays.early,", "wilson(delays.skipped,")),
    (test_realised, Edit(accuracy._delay, "yield from early", "")),
    (test_realised, Edit(realised._excuses, "late_ns <= most_ns", "True")),
    (test_realised, Edit(realised._excuses, "+ WITNESS_NS", "")),
    (test_realised, Edit(realised._excuses, "stall[:, 1] > due_ns - spread_ns", "True")),
    (test_realised, Edit(accuracy._loss, "elif losses.is_rest_missing:", "elif False:")),
    (test_realised, Edit(accuracy._loss, "elif losses.uneven is not None:", "elif False:")),
    (test_realised, Edit(realised._uneven, "or high < least", "")),
    (test_realised, Edit(realised._uneven, "low > most + corrupted", "False")),
    (test_realised, Edit(realised._uneven, "+ corrupted", "")),
    (test_realised, Edit(realised._uneven, "max(0, lost - dropped)", "lost")),
    (
        test_realised,
        Edit(realised._uneven, "high = wilson(lost * trials / frames, trials", "high = wilson(lost, frames"),
    ),
    (test_realised, Edit(accuracy._delay, "stalled.frames > STALLED_RATIO", "stalled.frames < STALLED_RATIO")),
    (test_realised, Edit(accuracy._loss, "losses.high < least", "losses.high < 0")),
    (test_realised, Edit(accuracy._loss, "losses.low > most", "losses.low > 1")),
    (test_realised, Edit(accuracy._most_lost, "_corruption_asked(realised)[1]", "0")),
    (test_realised, Edit(accuracy._duplicates, "low > expected or high < least", "low <= expected and high >= least")),
    (test_realised, Edit(accuracy._delay, "delays.frames < ENOUGH_FRAMES", "False")),
    (test_realised, Edit(accuracy._full_queue, "realised.longest_ns < least_ns", "False")),
    (test_realised, Edit(accuracy._full_queue, "low <= _most_lost(realised)", "False")),
    (test_realised, Edit(accuracy._full_queue, "realised.most_waiting + 1 < FEWER_WAITING", "0 > FEWER_WAITING")),
    (test_realised, Edit(accuracy._full_queue, "FEWER_WAITING * asked", "2 * asked")),
    (test_realised, Edit(realised._most_waiting, "or one.duplicate_ratio", "")),
    (test_realised, Edit(realised._most_waiting, "one.jitter_ns or one.reorder_ratio or", "")),
    (test_realised, Edit(realised._most_waiting, "any(part.rest.has_queue for part in parts)", "False")),
    (test_rates, Edit(realised._most_waiting, "or _has_others(passed, entered_ns, left_ns)", "")),
    (test_rates, Edit(realised._has_others, "int(entered_ns.min())", "int(left_ns.min())")),
    (test_realised, Edit(realised._longest_ns, "max(longest_ns,", "min(longest_ns,")),
    (test_realised, Edit(realised._departures, "(passed.copies - 1)", "0")),
    (test_realised, Edit(realised._rate, "if asked.reorder_ratio:", "if False:")),
    (test_rates, Edit(realised._rate, "is_whole and NEVER not in left.ready_ns", "is_whole")),
    (test_rates, Edit(realised._rate, "left.ready_ns + LATE_NS < left.leave_ns", "True")),
    (test_rates, Edit(realised._rate_unjudged, "not is_last and parts and", "False and")),
    (test_rates, Edit(realised._rate_unjudged, "part.path if is_last else", "part.path if True else")),
    (test_rates, Edit(realised._rate_unjudged, "one.jitter_ns for path", "False for path")),
    (test_rates, Edit(realised._rate_unjudged, "any(path.duplicate_ratio for path in before)", "True")),
    (test_rates, Edit(realised._departures, "+ _jitter_ns(part.path)", "")),
    (test_rates, Edit(realised._departures_of, "part) - part.rest.delay_ns", "part)")),
    (test_rates, Edit(realised.lasting_backlogs, "+ LATE_NS", "")),
    (test_realised, Edit(realised._rate, "if is_whole else math.inf", "")),
    (test_rates, Edit(realised._rate, "all(part.rest.survival for part in usable) and", "")),
    (test_rates, Edit(realised._rate, "is_busy & ~np.append(is_busy[1:], False)", "is_busy & False")),
    (test_rates, Edit(realised._bytes_between, "** 3 / (sent**2).sum() / seen.sum()", "")),
    (test_rates, Edit(realised._bytes_between, "seen.sum() / (seen / most_seen).sum()", "1.0")),
    (test_rates, Edit(realised._departures_of, "part.rest.survival *", "")),
    (test_rates, Edit(realised._departures_of, "/ (1.0 + own if behind else 1.0)", "")),
    (test_rates, Edit(realised._departures_of, "* length * (not behind)", "* length")),
    (test_rates, Edit(realised._departures_of, "* length * (not behind)", "* 0")),
    (test_rates, Edit(realised._departures_of, "* (1.0 - behind)", "")),
    (test_rates, Edit(realised._recognised, "if copied else", "if False else")),
    (test_rates, Edit(realised._recognised, "KEY_BYTES / np.maximum(1, length)", "0")),
    (test_rates, Edit(realised._recognised, "KEY_BYTES / np.maximum(1, length)", "1")),
    (test_realised, Edit(accuracy._rate, "realised.ahead_ns > EARLY_NS", "False")),
    (test_realised, Edit(realised._ahead_ns, "- at_once_bytes", "- 0")),
    (test_realised, Edit(realised._ahead_ns, "or asked.reorder_ratio", "")),
    (test_realised, Edit(realised._ahead_ns, "or asked.jitter_ns", "")),
    (test_realised, Edit(realised._ahead_ns, "and not part.rest.has_jitter", "")),
    (test_realised, Edit(realised._ahead_ns, "not part.rest.has_queue and", "")),
    (test_rates, Edit(accuracy._rate_reached, "rate.nearest_bps(asked_bps)", "asked_bps")),
    (test_realised, Edit(accuracy._rate_reached, "if math.isinf(rate.most_bps)", "if False")),
    (test_realised, Edit(accuracy._full_queue, "rest.has_queue or", "")),
    (test_realised, Edit(accuracy._full_queue, "rest.survival < 1.0 or rest.corrupt_ratio", "False")),
    (test_realised, Edit(accuracy._full_queue, "+ realised.longest_stall_ns", "")),
    (test_realised, Edit(accuracy._full_queue, "+ spread_ns", "")),
    (test_realised, Edit(realised._full_wait_ns, "2 * largest_bytes", "0")),
    (test_realised, Edit(realised._full_wait_ns, "- smallest_bytes * 8 * 10**9 // asked.rate_bps", "")),
    (test_realised, Edit(accuracy._bursts, "bursts < ENOUGH_BURSTS", "bursts < 5")),
    (test_realised, Edit(accuracy._bursts, "bursts < ENOUGH_BURSTS", "bursts < 60")),
    (test_realised, Edit(accuracy._bursts, "losses.dropped != 0 and", "False and")),
    (test_realised, Edit(accuracy._bursts, "asked.corrupt_ratio or", "")),
    (test_realised, Edit(accuracy._bursts, " + BURST_TOLERANCE * mean", "")),
    (test_realised, Edit(accuracy._bursts, "if any(rest.has_queue for rest in realised.loss_rests):", "if False:")),
    (test_realised, Edit(accuracy._hides_bursts, "or one.corrupt_ratio", "")),
    (test_realised, Edit(accuracy._hides_bursts, "or one.duplicate_ratio", "")),
    (test_realised, Edit(accuracy._independence, "* (1 + BURST_TOLERANCE)", "")),
    (test_realised, Edit(accuracy._independence, "one.duplicate_ratio, one.corrupt_ratio", "0, 0")),
    (test_realised, Edit(accuracy._corruption, "and not _has_queue(realised.loss_rests, asked)", "")),
    (test_realised, Edit(accuracy._corruption, "* (1 - harm.hidden)", "")),
    (test_realised, Edit(accuracy._corruption, "* max(0.0, 1 - doubled)", "")),
    (test_realised, Edit(accuracy._duplicates, "min((rest.survival", "max((rest.survival")),
    (test_realised, Edit(accuracy._reordering, "(1 + asked.duplicate_ratio) * copies", "1")),
    (test_realised, Edit(accuracy._early, "is_thinned and level < 0.5", "False")),
    (test_realised, Edit(realised._take_cut, "until_ns - CLOCKS_NS - span", "until_ns - span")),
    (test_realised, Edit(realised._Healed.is_silent_after, "self.chance *=", "self.chance =")),
    (test_realised, Edit(realised._Healed.is_silent_after, "self.lost += lost", "self.lost = lost")),
    (test_conservation, Edit(conservation.balance, "not elsewhere and not any", "not any")),
    (
        test_conservation,
        Edit(conservation.balance, "reached.get(flow.node_index, targets) & targets", "targets"),
    ),
    (test_conservation, Edit(conservation._of_copies, "None in made and", "")),
    (test_conservation, Edit(conservation._of_copies, '["unexplained"] < 0', '["unexplained"] != 0')),
    (test_realised, Edit(accuracy._bursts, "losses.among > AMONG_RATIO * losses.frames", "False")),
    (test_realised, Edit(accuracy._bursts, "AMONG_RATIO * losses.frames", "0")),
    (test_realised, Edit(accuracy._bursts, "losses.unordered > UNORDERED_RATIO * losses.frames", "False")),
    (test_realised, Edit(realised._unordered, "< LATE_NS", "< LATE_NS / 2")),
    (test_realised, Edit(realised._unordered, "< LATE_NS", "< 2 * LATE_NS")),
    (test_realised, Edit(realised._unordered, "if one.delay_ns and part.before_ns", "")),
    (test_realised, Edit(realised._among, "if element[0] == FROM_NODE:", "if False:")),
    (test_realised, Edit(accuracy._bursts, "* (1 - asked.duplicate_ratio)", "")),
    (test_realised, Edit(accuracy._hides_bursts, "rest.has_jitter or", "")),
    (test_realised, Edit(accuracy._hides_bursts, "one.loss_ratio or", "")),
    (test_realised, Edit(accuracy._bursts, "losses.dropped != 0 and", "")),
    (test_realised, Edit(accuracy._duplicates, "* (1 - _corruption_asked(realised)[1])", "* 0.7")),
    (test_realised, Edit(accuracy._duplicates, "(survival *", "(1 *")),
    (test_realised, Edit(accuracy._duplicates, "trials = losses.trials", "trials = float(losses.frames)")),
    (test_realised, Edit(accuracy._duplicates, "losses.duplicated + losses.dropped", "losses.duplicated")),
    (
        test_realised,
        Edit(accuracy._duplicates, "losses.frames if losses.dropped is None", "0 if losses.dropped is None"),
    ),
    (test_realised, Edit(requested_network.chances_of_loss, "1 + asked.duplicate_ratio", "1 + 0")),
    (test_realised, Edit(requested_network.chances_of_loss, "leave), enter", "leave), loss")),
    (test_realised, Edit(requested_network.Path.lost, "(0.0, greatest) if is_bursty else", "")),
    (test_realised, Edit(requested_network.Path.lost, "least**2, greatest**2", "least, greatest")),
    (test_realised, Edit(requested_network.loss_of_copies, "* (1.0 - asked.duplicate_ratio)", "")),
    (test_realised, Edit(accuracy._duplicates, "if low > most:", "if False:")),
    (test_realised, Edit(accuracy._duplicates, "asked.duplicate_ratio + elsewhere", "elsewhere")),
    (test_realised, Edit(accuracy._duplicates, "more > expected", "False")),
    (
        test_realised,
        Edit(
            accuracy._duplicates, "min(1.0, losses.extra_copies / losses.frames)", "losses.duplicated / losses.frames"
        ),
    ),
    (test_realised, Edit(accuracy._rate_reached, "if rate is None", "if False")),
    (test_realised, Edit(accuracy.judge, "*_cuts(realised),", "")),
    (test_realised, Edit(accuracy.judge, "if realised.still_cut is not None:", "if False:")),
    (test_realised, Edit(realised.measure, "healed = _Healed() if element[0] == TO_NODE else None", "healed = None")),
    (test_realised, Edit(realised.measure, "healed = _Healed() if", "healed = (healed or _Healed()) if")),
    (test_realised, Edit(realised.measure, "rest.delay_ns if element[0] == TO_NODE else 0", "rest.delay_ns")),
    (test_realised, Edit(realised.measure, "rest.delay_ns if element[0] == TO_NODE else 0", "0")),
    (test_realised, Edit(realised._Healed.is_silent_after, "self.lost - dropped", "self.lost")),
    (test_realised, Edit(realised._Healed.is_silent_after, ">= ENOUGH_LOST", ">= 0")),
    (test_realised, Edit(realised._Healed.is_silent_after, "self.chance < ONE_SIDED", "True")),
    (test_realised, Edit(realised._Healed.is_silent_after, "if self.has_arrived:", "if False:")),
    (test_realised, Edit(realised._next_lost, "(1.0 - path.corrupt_ratio)", "1")),
    (test_realised, Edit(realised._next_lost, "1.0 - 1.0 / one", "0 / one")),
    (test_realised, Edit(realised._take_cut, "< until_ns - CLOCKS_NS", "< until_ns + CLOCKS_NS")),
    (test_realised, Edit(realised._take_cut, "np.minimum(sent.arrive_ns, sent.sent_ns + late_ns)", "sent.arrive_ns")),
    (test_realised, Edit(realised._take_cut, "+ _stalled_ns(stalls, span.from_ns, until_ns)", "")),
    (test_realised, Edit(realised._cut, "span.path.longest_ns", "span.path.delay_ns")),
    (test_realised, Edit(realised._take_cut, "- span.path.delay_ns", "")),
    (test_realised, Edit(realised._take_cut, "min(cut.until_ns, last_ns)", "min(span.until_ns, last_ns)")),
    (test_realised, Edit(realised.measure, "span.from_ns >= cut.until_ns", "False")),
    (test_realised, Edit(realised.measure, "if not span.path.is_cut:", "if True:")),
    (test_realised, Edit(accuracy._loss, "undropped <= most", "True")),
    (test_realised, Edit(accuracy._loss, "undropped is None:", "False:")),
    (test_realised, Edit(realised._dropped, "else ELSEWHERE", "else element")),
    (test_realised, Edit(realised._dropped, "if part.path.buses", "if False")),
    (test_realised, Edit(accuracy.judge, "*_independence(realised.losses, realised),", "")),
    (test_realised, Edit(accuracy._independence, "is_bursty or len(chances) > 1 or ", "")),
    (test_realised, Edit(accuracy._independence, "_chance_of_few_runs(*runs) < ONE_SIDED", "True")),
    (test_realised, Edit(accuracy._independence, "_chance_of_many_runs(*runs) < ONE_SIDED", "True")),
    (test_realised, Edit(accuracy._independence, "is_fewer or is_more", "is_fewer")),
    (test_realised, Edit(accuracy._independence, "and not may_alternate", "")),
    (test_realised, Edit(accuracy._chance_of_many_runs, "kept + 1 - r", "kept - r")),
    (test_realised, Edit(accuracy._bursts, "low - BURST_TOLERANCE <= 1 / mean <=", "1 / mean <=")),
    (test_realised, Edit(accuracy._bursts, "<= high + BURST_TOLERANCE", "")),
    (test_realised, Edit(accuracy._bursts, "deviations=asked_delays.DEVIATIONS", "deviations=0")),
    (test_realised, Edit(accuracy._chance_of_runs, "_log_choose(kept + 1, runs)", "_log_choose(kept, runs)")),
    (test_realised, Edit(accuracy._overlong_wait, "+ (1 + RATE_TOLERANCE) * longest_wait_ns", "")),
    (test_realised, Edit(accuracy._overlong_wait, "delays.p99_ns > most_ns", "delays.p99_ns > 2 * most_ns")),
    (test_realised, Edit(realised.wilson, "spread = deviations", "spread = 0")),
    (test_realised, Edit(realised.wilson, "if hits < FEW:", "if False:")),
    (test_realised, Edit(realised.wilson, "if trials - hits < FEW:", "if False:")),
    (test_realised, Edit(accuracy._corruption, "if harm.damaged:", "if False:")),
    (test_realised, Edit(accuracy._corruption, "and not harm.may_be_foreign", "")),
    (test_realised, Edit(accuracy._corruption, "harm.damaged_low > most_damaged +", "harm.damaged_low > 1 +")),
    (test_realised, Edit(accuracy._corruption, "* harm.strangers", "")),
    (test_realised, Edit(accuracy._corruption, "+ STRANGE_RATIO * harm.strangers", "")),
    (test_realised, Edit(realised._harm, "element[0] != TO_NODE or", "")),
    (test_realised, Edit(realised._harm, "or element in passed", "")),
    (test_realised, Edit(realised._harm, "element[0] != TO_NODE or element in passed", "True")),
    (test_realised, Edit(realised._harm, "damage != NOT_KNOWN", "damage == NOT_KNOWN")),
    (test_media, Edit(accuracy._medium, "found.ahead_ns > EARLY_NS", "False")),
    (test_media, Edit(accuracy._medium, "if found.unjudged:", "if False:")),
    (test_media, Edit(accuracy._medium, "yield from _overlong_wait", "_overlong_wait")),
    (test_media, Edit(accuracy._medium, "if not found.dropped:", "if True:")),
    (test_media, Edit(accuracy._medium, "if found.most_waiting is None:", "if False:")),
    (test_media, Edit(accuracy._rate_reached, "rate.nearest_bps(asked_bps)", "asked_bps")),
    (test_media, Edit(media.measured, "<= own_drops +", "<=")),
    (test_media, Edit(media.measured, "if knows_entries else 0\n", "\n")),
    (test_media, Edit(realised.ahead_ns, "(1 + RATE_TOLERANCE)", "(1 - RATE_TOLERANCE)")),
    (test_media, Edit(realised.lasting_backlogs, "+ LATE_NS", "")),
    (test_media, Edit(media._left, "after_ns >= settled_ns", "after_ns >= 0")),
    (test_media, Edit(realised.lasting_backlogs, ">= BACKLOG_NS", ">= 0")),
    (test_media, Edit(realised.lasting_backlogs, "if len(stalls):", "if False:")),
    (test_media, Edit(media._rate, "(1 - UNSEEN_SLACK) * surely", "surely")),
    (test_estimate, Edit(estimate.estimate, "t_quantile(count - 1)", "t_quantile(count)")),
    (test_estimate, Edit(estimate.estimate, "/ math.sqrt(count)", "/ count")),
    (test_estimate, Edit(estimate._within, "total += term", "total -= term")),
    (test_skew, Edit(skew._jumped, "jump.after_ns - jump.before_ns", "0")),
    (test_skew, Edit(skew._offset, "gained * ((times", "0 * ((times")),
    (test_skew, Edit(skew._within, "over[-1] + 1]", "over[0] + 1]")),
    (test_skew, Edit(skew.skews, "high[compared] - low[compared]", "high[compared]")),
)


_noticing: dict[str, int] = {}
"""How often each test has noticed an edit. These are tried first, which takes half of the time."""


def failing(module: ModuleType, first: Mapping[str, int] = MappingProxyType({})) -> Iterator[str]:
    """Names of the failing tests of a module, of those that need no fixture, over all their parameters."""
    for name, test in sorted(vars(module).items(), key=lambda item: -first.get(item[0], 0)):
        if not name.startswith("test_") or not inspect.isfunction(test):
            continue
        marks = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        given = [list(_parameters(*args)) for args in marks]
        if {one for args in marks for one in _names(args[0])} != set(inspect.signature(test).parameters):
            continue
        for combination in itertools.product(*given):
            try:
                test(**{name: value for values in combination for name, value in values.items()})
            except Exception:
                yield name
                break


def _names(text: Any) -> list[str]:
    return [one.strip() for one in text.split(",")] if isinstance(text, str) else list(text)


def _parameters(text: Any, rows: Any, *_: Any) -> Iterator[dict[str, Any]]:
    names = _names(text)
    for row in rows:
        yield dict(zip(names, row if len(names) > 1 else (row,), strict=True))


@pytest.mark.parametrize("module", [test_realised, test_rates, test_estimate, test_skew], ids=lambda one: one.__name__)
def test_without_an_edit_all_pass(module: ModuleType) -> None:
    assert not list(failing(module))


@pytest.mark.parametrize(("module", "edit"), EDITS, ids=[edit.name for _, edit in EDITS])
def test_an_edit_is_noticed(module: ModuleType, edit: Edit, monkeypatch: pytest.MonkeyPatch) -> None:
    edit.apply(monkeypatch)
    estimate.t_quantile.cache_clear()
    try:
        noticed = next(failing(module, first=_noticing), None)
        assert noticed is not None
        _noticing[noticed] = _noticing.pop(noticed, 0) + 1
    finally:
        estimate.t_quantile.cache_clear()
