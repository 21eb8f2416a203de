"""Conditions and formulas over the results of a run: `latency.p99_ms <= 80`, `max(latency.by_member.p99_ms) / 2`. The
language is a subset of Python's syntax, evaluated by this module only; docs/experiments.md defines it.

The text may be hostile: its length and nesting are bounded, and it can reach only the results.

A missing name, a value that was not measured (null), the violations of a property whose verdict is unknown, the sum
of no values, a selection from what `where` does not find, or a comparison of different kinds gives an Unknown with its
reason. `and` and `or` return it only where it matters: false and unknown is false, true or unknown is true.
"""

from __future__ import annotations

import ast
import math
import operator
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

from analysis.checks.properties import EXPECTABLE, Property, Verdict
from analysis.metrics.estimate import LEAST_RUNS, estimate
from topologies.formats.errors import did_you_mean
from topologies.formats.units import shown

MAX_TEXT = 1000
"""Characters; this also bounds the size of numbers."""

MAX_DEPTH = 64
"""Nested operations; the recursion over the tree is safe at this depth."""

RUNS = "runs"
"""Name in the results of a sweep: the list of its runs. Numbers that are computed from a run remember its seed."""
SETTINGS = ("variant", "given")
"""Names in a run of what was asked of it, which no seed determines. The first has its `seed`."""

FUNCTIONS = "abs, min, max, len, sum, mean, slope, r_squared, estimate, where"
ALLOWED = f"names, numbers, texts, comparisons, and, or, not, + - * / **, {FUNCTIONS}"


class ExpressionError(ValueError):
    """The text is not an expression; `str()` says what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A parsed text with only allowed syntax."""

    text: str
    tree: ast.expr = field(repr=False, compare=False)

    @property
    def names(self) -> frozenset[str]:
        """Its names, and those of its functions, without the names behind a dot."""
        return frozenset(node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name))

    @property
    def may_be_condition(self) -> bool:
        """False when the value can only be a number or a text."""
        if isinstance(self.tree, ast.Constant):
            return isinstance(self.tree.value, bool)
        if isinstance(self.tree, ast.UnaryOp):
            return isinstance(self.tree.op, ast.Not)
        return not isinstance(self.tree, ast.BinOp | ast.Call)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """An unknown value, with the reason."""

    reason: str


@lru_cache(maxsize=1000)
def parse(text: str) -> Expression:
    """Expression of a text. Raises ExpressionError."""
    if len(text) > MAX_TEXT:
        raise ExpressionError(f"expected an expression of at most {MAX_TEXT} characters, got {len(text)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd escapes and spacing: the user cannot see them
            tree = ast.parse(text.strip(), mode="eval").body
        _check(tree)
    except SyntaxError as error:
        raise ExpressionError(f"{shown(text)} is no expression: {error.msg} (allowed: {ALLOWED})") from None
    except (ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, ExpressionError):
            raise
        raise ExpressionError(f"{shown(text)} is no expression (allowed: {ALLOWED})") from None
    return Expression(text=text.strip(), tree=tree)


def evaluate(expression: Expression, results: Mapping[str, Any]) -> Any:
    """The value over `results` (a summary, or any nest of mappings, lists and scalars), or an Unknown."""
    return _guarded(expression.tree, results)


def condition(expression: Expression, results: Mapping[str, Any]) -> bool | Unknown:
    """Truth of a condition; an Unknown also when the expression has a value but is not a condition."""
    value = evaluate(expression, results)
    if isinstance(value, bool | Unknown):
        return value
    return Unknown(reason=f"{expression.text} is {shown(value)}, not a condition; compare it with something")


def subject(expression: Expression, results: Mapping[str, Any]) -> Any:
    """Value that a condition tests: the first side of its comparison that is not a constant; else the whole value."""
    tree = expression.tree
    if isinstance(tree, ast.Compare):
        sides = [side for side in (tree.left, *tree.comparators) if not isinstance(side, ast.Constant)]
        tree = sides[0] if sides else tree
    return _guarded(tree, results)


Names: TypeAlias = Mapping[str, Any]
"""Names of summary.json, each with the Names below it; `*`: any other name, `**`: any names."""

_ANYTHING: Final[Names] = {"**": {}}


@cache
def summary_names() -> Names:
    """Names that a condition of an experiment may use: the sections of a summary and their contents."""
    names: dict[str, Any] = {name: {} for name in EXPECTABLE}
    for line in (Path(__file__).parent / "summary_names.txt").read_text(encoding="utf-8").splitlines()[1:]:
        path, _, leaves = line.partition(": ")
        below = names
        for part in path.split("."):
            below = below[part]
        below.update({leaf: {} for leaf in leaves.split()})
    names["properties"] = dict.fromkeys((kind.value for kind in Property), names["properties"]["*"])
    return names


def misnamed(expression: Expression, names: Names) -> str | None:
    """Sentence about a name of the expression that does not exist; None: all exist. Lists have the names of their
    items.
    """
    try:
        _names_of(expression.tree, names)
    except _UnknownError as error:
        return str(error)
    return None


def _names_of(node: ast.expr, names: Names, of: str = "a run") -> Names:
    """Names below the value of `node`; `names` are those of `of`. Raises _UnknownError."""
    match node:
        case ast.Name(id=name):
            return _below(of, names, name)
        case ast.Attribute(value=holder, attr=name):
            return _below(ast.unparse(holder), _names_of(holder, names, of), name)
        case ast.Subscript(value=holder, slice=ast.Constant(value=str(name))):
            return _below(ast.unparse(holder), _names_of(holder, names, of), name)
        case ast.Subscript(value=holder, slice=index):
            _names_of(index, names, of)
            return _names_of(holder, names, of)
        case ast.Call(func=ast.Name(id="where"), args=[items, wanted]):
            found = _names_of(items, names, of)
            _names_of(wanted, found, ast.unparse(items))
            return found
        case ast.Call(args=parts) | ast.BoolOp(values=parts):
            pass
        case _:
            parts = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    for part in parts:
        _names_of(part, names, of)
    return _ANYTHING


def _below(where: str, names: Names, name: str) -> Names:
    if "**" in names:
        return _ANYTHING
    found = names.get(name, names.get("*"))
    if found is None:
        hint = did_you_mean(name, names) or (f"; it has {', '.join(names)}" if names else "")
        _unknown(f"{where} has no {shown(name)}{hint}")
    return found  # type: ignore[no-any-return]


class _UnknownError(Exception):
    """Caught at the nearest `and` or `or`, or at the top, where it becomes an Unknown."""


def _unknown(reason: str) -> NoReturn:
    raise _UnknownError(reason)


_ARITHMETIC: Mapping[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.Pow: ("**", math.pow),  # in floats: 9 ** 9 ** 9 is refused at once instead of computed
}
_COMPARISONS: Mapping[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}
_ALLOWED_NODES: tuple[type[ast.AST], ...] = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Call, ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp),
    *(ast.Load, ast.And, ast.Or, ast.Not, ast.UAdd, ast.USub),
    *_ARITHMETIC,
    *_COMPARISONS,
)


def _check(tree: ast.expr) -> None:
    _check_depth(tree)
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED_NODES):
            raise ExpressionError(f"{_written(node)} is not taken in an expression (allowed: {ALLOWED})")
        if isinstance(node, ast.Constant) and not isinstance(node.value, bool | int | float | str):
            raise ExpressionError(f"{_written(node)} is not taken in an expression (allowed: {ALLOWED})")
        if isinstance(node, ast.Call) and not _is_known_call(node):
            raise ExpressionError(f"only {FUNCTIONS} can be called, not {_written(node)}")
        if isinstance(node, ast.Compare):
            _check_verdicts([node.left, *node.comparators])


def _check_verdicts(sides: Sequence[ast.expr]) -> None:
    """A verdict is compared with a text that can be one: `verdict != 'failed'` holds for every run."""
    for side, other in (*pairwise(sides), *pairwise(sides[::-1])):
        match side, other:
            case (ast.Name(id="verdict") | ast.Attribute(attr="verdict"), ast.Constant(value=str(text))):
                pass
            case (ast.Subscript(slice=ast.Constant(value="verdict")), ast.Constant(value=str(text))):
                pass
            case _:
                continue
        if text not in (known := [one.value for one in Verdict]):
            raise ExpressionError(f"a verdict is {', '.join(known[:-1])} or {known[-1]}, not {shown(text)}")


def _check_depth(tree: ast.expr) -> None:
    level: list[ast.AST] = [tree]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ExpressionError(f"expected at most {MAX_DEPTH} nested operations in an expression")
        level = [child for node in level for child in ast.iter_child_nodes(node)]


def _is_known_call(node: ast.Call) -> bool:
    known = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
    return known and bool(node.args) and not node.keywords


def _written(node: ast.AST) -> str:
    return shown(ast.unparse(node)) if isinstance(node, ast.expr) else type(node).__name__.lower()


class _Results(Mapping[str, Any]):
    """Results of a run, or a part of them, with the seeds of its numbers."""

    def __init__(self, results: Mapping[str, Any], seeds: frozenset[Any]) -> None:
        self.results = results
        self.seeds = seeds

    @classmethod
    def of_run(cls, results: Mapping[str, Any]) -> _Results:
        variant = results.get(SETTINGS[0])
        return cls(results, frozenset([variant.get("seed") if isinstance(variant, Mapping) else None]))

    def __getitem__(self, name: str) -> Any:
        value = self.results[name]
        return value if name in SETTINGS else _with_seeds(value, self.seeds)

    def __contains__(self, name: object) -> bool:
        return name in self.results

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)


class _Whole(int):
    seeds: frozenset[Any]


class _Real(float):
    seeds: frozenset[Any]


def _with_seeds(value: Any, seeds: frozenset[Any]) -> Any:
    """The value, whose numbers remember the seeds of the runs that they are computed from."""
    if isinstance(value, list | tuple):
        return [_with_seeds(one, seeds) for one in value]
    if isinstance(value, Mapping):
        return _Results(value, seeds)
    if isinstance(value, bool) or not isinstance(value, int | float) or not seeds:
        return value
    number = _Whole(value) if isinstance(value, int) else _Real(value)
    number.seeds = seeds
    return number


def _seeds(value: Any) -> frozenset[Any]:
    return value.seeds if isinstance(value, _Whole | _Real) else frozenset()


def _computed_from(value: Any, numbers: Sequence[Any]) -> Any:
    return _with_seeds(value, frozenset[Any]().union(*map(_seeds, numbers)))


def _plain(value: Any) -> Any:
    """The value without seeds."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, _Results):
        return value.results
    if isinstance(value, _Whole | _Real):
        return int(value) if isinstance(value, int) else float(value)
    return value


def _guarded(tree: ast.expr, results: Mapping[str, Any]) -> Any:
    try:
        return _plain(_value(tree, results))
    except _UnknownError as error:
        return Unknown(reason=str(error))


def _value(node: ast.expr, results: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return _named(node, results)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return _compared(left, ops, comparators, results)
        case ast.BoolOp(op=op, values=values):
            return _joined(isinstance(op, ast.Or), values, results)
        case ast.UnaryOp(op=op, operand=operand):
            return _unary(op, operand, results)
        case ast.BinOp(left=left, op=op, right=right):
            return _computed(op, _value(left, results), _value(right, results))
        case ast.Call(func=ast.Name(id="where"), args=arguments):
            return _selected(arguments, results)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            given = [_value(argument, results) for argument in arguments]
            try:
                return _called(name, given) if name != "estimate" else _estimated(given)
            except ArithmeticError:
                _unknown(f"{name} of numbers as great as these has no value")
    raise AssertionError(f"parse let {ast.dump(node)} through")


def _named(node: ast.expr, results: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        found = _field("this run", results, node.id)
        if node.id == RUNS and isinstance(found, list) and all(isinstance(one, Mapping) for one in found):
            return [_Results.of_run(one) for one in found]
        return found
    if isinstance(node, ast.Attribute):
        return _field(ast.unparse(node.value), _value(node.value, results), node.attr)
    assert isinstance(node, ast.Subscript)
    where, holder, index = ast.unparse(node.value), _value(node.value, results), _plain(_value(node.slice, results))
    if isinstance(index, str):
        return _field(where, holder, index)
    if not isinstance(holder, Sequence) or isinstance(holder, str) or type(index) is not int:
        _unknown(f"{where} has no place {shown(index)}")
    if not -len(holder) <= index < len(holder):
        _unknown(f"{where} has {len(holder)} items, none at {index}")
    return holder[index]


def _field(where: str, holder: Any, name: str) -> Any:
    if isinstance(holder, list | tuple):
        return [_field(where, item, name) for item in holder]
    if not isinstance(holder, Mapping):
        _unknown(f"{where} is {shown(holder)} and has no {name}")
    if name not in holder:
        _unknown(f"{where} has no {name}{did_you_mean(name, [key for key in holder if isinstance(key, str)])}")
    if name == "violations" and holder.get("verdict") == Verdict.UNKNOWN.value:
        _unknown(f"the verdict of {where} is unknown, and so are its violations")
    return holder[name]


def _compared(left: ast.expr, ops: list[ast.cmpop], comparators: list[ast.expr], results: Mapping[str, Any]) -> bool:
    before = _value(left, results)
    for op, comparator in zip(ops, comparators, strict=True):
        after = _value(comparator, results)
        sign, compare = _COMPARISONS[type(op)]
        given = (before, isinstance(left, ast.Constant)), (after, isinstance(comparator, ast.Constant))
        for (value, is_written), (other, is_other_written) in (given, given[::-1]):
            if _is_missing(value):
                _unknown(f"a value beside {sign} was not measured")
            # Two unknown verdicts are not equal; `verdict == 'unknown'` asks for one.
            if value == Verdict.UNKNOWN.value and not is_written and (other in _TOLD or not is_other_written):
                _unknown("the verdict is unknown itself")
        _require_same_kind(before, sign, after)
        if not compare(before, after):
            return False
        before, left = after, comparator
    return True


def _require_same_kind(before: Any, sign: str, after: Any) -> None:
    if (
        _kind(before) is None
        or _kind(before) != _kind(after)
        or (isinstance(before, bool) and sign not in ("==", "!="))
    ):
        _unknown(f"{shown(before)} {sign} {shown(after)} cannot be compared")


_TOLD = (Verdict.PASS.value, Verdict.FAIL.value)


def _kind(value: Any) -> str | None:
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else None


def _joined(is_or: bool, values: list[ast.expr], results: Mapping[str, Any]) -> bool:
    """A deciding operand (false for `and`, true for `or`) decides even beside an unknown one."""
    reason: str | None = None
    for value in values:
        try:
            if _truth(_value(value, results)) == is_or:
                return is_or
        except _UnknownError as error:
            reason = reason or str(error)
    if reason is not None:
        _unknown(reason)
    return not is_or


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        _unknown(f"{shown(value)} is neither true nor false")
    return value


def _unary(op: ast.unaryop, operand: ast.expr, results: Mapping[str, Any]) -> Any:
    value = _value(operand, results)
    if isinstance(op, ast.Not):
        return not _truth(value)
    number = _number(value)
    return _computed_from(-number, [number]) if isinstance(op, ast.USub) else number


def _computed(op: ast.operator, left: Any, right: Any) -> Any:
    """Result of an operation, item by item when a side is a list."""
    lists = [side for side in (left, right) if isinstance(side, list | tuple)]
    if lists:
        count = len(lists[0])
        if any(len(one) != count for one in lists):
            _unknown(f"lists of {' and '.join(str(len(one)) for one in lists)} items cannot be computed item by item")
        pairs = zip(_spread(left, count), _spread(right, count), strict=True)
        return [_computed(op, one, other) for one, other in pairs]
    sign, compute = _ARITHMETIC[type(op)]
    try:
        return _computed_from(compute(_number(left), _number(right)), (left, right))
    except (ArithmeticError, ValueError):
        _unknown(f"{shown(left)} {sign} {shown(right)} has no value")


def _spread(side: Any, count: int) -> Sequence[Any]:
    return side if isinstance(side, list | tuple) else [side] * count


def _number(value: Any) -> int | float:
    if _is_missing(value):
        _unknown("a value in the formula was not measured")
    if isinstance(value, bool) or not isinstance(value, int | float):
        _unknown(f"{shown(value)} is not a number")
    return value


def _is_missing(value: Any) -> bool:
    """Whether a value was not measured: null in JSON, NaN in pandas."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _selected(arguments: list[ast.expr], results: Mapping[str, Any]) -> list[Any]:
    """Items of a list for which a condition holds; its names are those of the item."""
    if len(arguments) != 2:
        _unknown("where takes a list and a condition")
    items = _value(arguments[0], results)
    if _selects(arguments[0]) and _has_empty(items):
        _unknown(f"{ast.unparse(arguments[0])} finds nothing to select from")
    return _matching(items, arguments[1])


def _selects(node: ast.expr) -> bool:
    return any(isinstance(one, ast.Call) and ast.unparse(one.func) == "where" for one in ast.walk(node))


def _has_empty(value: Any) -> bool:
    return isinstance(value, list) and (not value or any(map(_has_empty, value)))


def _matching(items: Any, wanted: ast.expr) -> list[Any]:
    if _is_nested(items):
        return [_matching(item, wanted) for item in items]
    if not isinstance(items, list | tuple) or not all(isinstance(item, Mapping) for item in items):
        _unknown(f"where takes a list of runs, not {shown(items)}")
    return [item for item in items if _truth(_value(wanted, item))]


def _is_nested(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(one, list | tuple) for one in value)


def _called(name: str, arguments: list[Any]) -> Any:
    if name == "abs":
        return _absolute(arguments)
    if name in _OF_TWO_LISTS:
        return _line(name, arguments)
    given = arguments[0] if len(arguments) == 1 else arguments
    if (
        not isinstance(given, Sequence | Mapping)
        or isinstance(given, str)
        or (name != "len" and isinstance(given, Mapping))
    ):
        _unknown(f"{name} takes a list, not {shown(given)}")
    if name == "len":
        return len(given)
    if _is_nested(given):
        if len(arguments) == 1:
            return [_called(name, [one]) for one in given]
        if len({len(one) for one in given}) > 1:
            _unknown(f"{name} takes lists of one length")
        return [_called(name, [items]) for items in zip(*given, strict=True)]
    numbers = [_number(value) for value in given]
    if not numbers:
        _unknown(f"{name} of an empty list has no value")
    return _computed_from(_FUNCTIONS[name](numbers), numbers)


def _absolute(arguments: list[Any]) -> Any:
    if len(arguments) != 1:
        _unknown("abs takes one number or one list")
    if isinstance(arguments[0], list | tuple):
        return [_absolute([value]) for value in arguments[0]]
    number = _number(arguments[0])
    return _computed_from(abs(number), [number])


def _line(name: str, arguments: list[Any]) -> Any:
    """Slope or r² of the straight line through the points (x, y), by least squares."""
    if len(arguments) != 2 or not all(isinstance(one, list | tuple) for one in arguments):
        _unknown(f"{name} takes two lists, of x and of y")
    xs, ys = ([_number(value) for value in one] for one in arguments)
    try:
        value = _OF_TWO_LISTS[name]([float(x) for x in xs], [float(y) for y in ys])
    except statistics.StatisticsError as error:
        _unknown(f"{name} has no value: {error}")
    return _computed_from(value, [*xs, *ys])


def _estimated(arguments: list[Any]) -> Any:
    """Estimate of a list, or of each group of its values with the same item in a second list, in order of
    appearance.
    """
    if not 1 <= len(arguments) <= 2 or not all(isinstance(one, list | tuple) for one in arguments):
        _unknown("estimate takes a list of values, and perhaps a list that groups them")
    values = [_number(value) for value in arguments[0]]
    if len(arguments) == 1:
        return _interval(values)
    by = arguments[1]
    if len(by) != len(values) or not all(isinstance(one, bool | int | float | str) for one in by):
        _unknown("estimate takes a second list with a number or a text for each value")
    parts: dict[Any, list[int | float]] = {}
    for value, at in zip(values, by, strict=True):
        parts.setdefault(_plain(at), []).append(value)
    return [_interval(part) | {"at": at} for at, part in parts.items()]


def _interval(values: list[int | float]) -> dict[str, Any]:
    """Estimate of independent values: no two are computed from runs of one seed."""
    if len(values) < LEAST_RUNS:
        _unknown(f"an interval needs at least {LEAST_RUNS} runs, and there are {len(values)}")
    seeds = [_seeds(value) for value in values]
    if not all(seeds):
        _unknown("an interval needs values of runs with different seeds")
    count = len(frozenset[Any]().union(*seeds))
    if sum(map(len, seeds)) != count:
        of_seeds = f"{count} seed{'' if count == 1 else 's'}"
        _unknown(f"{len(values)} runs of {of_seeds} are not independent, so they give no interval")
    return estimate([float(value) for value in values]).as_dict()


def _slope(xs: list[float], ys: list[float]) -> float:
    return statistics.linear_regression(xs, ys).slope


def _r_squared(xs: list[float], ys: list[float]) -> float:
    return statistics.correlation(xs, ys) ** 2


_OF_TWO_LISTS: Mapping[str, Callable[[list[float], list[float]], float]] = {"slope": _slope, "r_squared": _r_squared}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "min": min,
    "max": max,
    "len": len,
    "sum": sum,
    "mean": statistics.fmean,
    "estimate": _estimated,
    "where": _selected,
    **_OF_TWO_LISTS,
}
