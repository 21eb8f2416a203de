"""Reader of all YAML files: a small, strict subset of YAML, with the line of every key.

A mistake and a hostile file both give an InputError with file and line. The subset has one document of blocks, lists,
texts, numbers, true, false and null. It has no anchors and aliases (so no exponential growth), no tags (so no objects),
no duplicate keys, no keys that are not plain texts, no control characters, and none of the conversions of YAML 1.1
(`no`, `1:30` and `007` are texts here).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import yaml

from topologies.formats.errors import InputError
from topologies.formats.units import shown

MAX_BYTES = 2**20
MAX_DEPTH = 24
"""Most nested blocks and lists. The deepest valid experiment file has 8."""

MAX_VALUES = 50_000
"""Most keys and items of lists, which take about a second. The longest valid file has one block for each node."""

MAX_KEY_TEXT = 120
"""Most characters of a key path in an error; more would hide the sentence."""

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"
KeyPath: TypeAlias = tuple[str | int, ...]

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C takes a tenth of the time. A PyYAML without it reads the same files, slowly."""

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,18})", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+]?[0-9]+)?", re.ASCII)
_CONSTANTS: Mapping[str, Value] = {"": None, "~": None, "null": None, "true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One file as read: plain values, and the line of each."""

    source: str
    """Name for errors: the path as the user gave it."""
    text: str
    value: Value
    lines: Mapping[KeyPath, int] = field(repr=False)
    """1-based line of each key and list item; the empty path is the document's first line."""

    def line(self, path: Sequence[str | int]) -> int:
        """Line of the key, or of the nearest block around it that the file has."""
        known = tuple(path)
        while known not in self.lines:
            known = known[:-1]
        return self.lines[known]

    def item(self, path: KeyPath, position: int) -> KeyPath:
        """Path of an item of a list; the list's own path for a single item without brackets."""
        within = (*path, position)
        return within if within in self.lines else path

    def error(self, path: Sequence[str | int], sentence: str) -> InputError:
        """A mistake at `path` (keys and 0-based list positions)."""
        return InputError(sentence, source=self.source, line=self.line(path), key=key_text(path))


def read(path: Path) -> Document:
    """Read one file. Raises InputError for any mistake in it."""
    source = str(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError("there is no such file", source=source) from None
    except IsADirectoryError:
        raise InputError("this is a directory; give the file in it", source=source) from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"the file cannot be read ({reason})", source=source) from None
    return reads(content, source)


def reads(content: bytes | str, source: str) -> Document:
    """Read a text that is already in memory; `source` names it in errors."""
    text = content if isinstance(content, str) else _decoded(content, source)
    if len(content) > MAX_BYTES:
        raise InputError(f"the file is larger than {MAX_BYTES // 1024} KiB", source=source)
    try:
        return _Reader(text, source).document()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(
            "not valid YAML: this line holds a control character; remove it", source=source, line=line
        ) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, source) from None
    except (ValueError, OverflowError):  # PyYAML passes an escape such as "\\UFFFFFFFF" to chr() unchecked
        raise InputError("not valid YAML: an escape names a character that does not exist", source=source) from None


def key_text(path: Sequence[str | int]) -> str | None:
    """`partitions.p1.nodes[2]`; None for the document itself."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{_key_shown(part)}" for part in path]
    text = "".join(parts).removeprefix(".")
    return (text if len(text) <= MAX_KEY_TEXT else f"{text[:MAX_KEY_TEXT]}…") or None


def _key_shown(key: str) -> str:
    return key if key.isprintable() and 0 < len(key) <= 50 and key == key.strip() else shown(key)


def _decoded(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"not UTF-8 (byte 0x{content[error.start]:02x}); save the file as UTF-8", source=source, line=line
        ) from None


def _syntax_error(error: yaml.MarkedYAMLError, source: str) -> InputError:
    problem = error.problem or "unreadable"
    mark = error.problem_mark or error.context_mark
    hint = ""
    if "alias" in (error.context or ""):
        hint = '; a text that starts with * must be quoted: "*"'
    elif "cannot start any token" in problem:
        hint = "; indent with spaces, and quote what begins with % or @"
    line = None if mark is None else mark.line + 1
    return InputError(f"not valid YAML: {problem}{hint}", source=source, line=line)


class _Reader:
    """Builder of values from the event stream. Too deep nesting is refused before it can exhaust the stack."""

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source
        self._events: Iterator[yaml.Event] = iter(yaml.parse(text, Loader=_LOADER))
        self._lines: dict[KeyPath, int] = {}

    def document(self) -> Document:
        value: Value = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if self._lines:
                    raise self._error(event, "the file holds a second document; give each file one")
                self._lines[()] = _line(event)
                value = self._value(next(self._events), ())
        if not self._lines:
            raise InputError("the file is empty", source=self._source)
        return Document(source=self._source, text=self._text, value=value, lines=self._lines)

    def _value(self, event: yaml.Event, path: KeyPath) -> Value:
        """Value that begins with this event."""
        self._refuse_extras(event, path)
        if len(self._lines) > MAX_VALUES:
            raise self._error(event, f"the file holds more than {MAX_VALUES:,} values", path)
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if len(path) >= MAX_DEPTH:
            raise self._error(event, f"blocks and lists are nested more than {MAX_DEPTH} deep", path)
        return self._block(path) if isinstance(event, yaml.MappingStartEvent) else self._list(path)

    def _list(self, path: KeyPath) -> list[Value]:
        items: list[Value] = []
        while not isinstance(event := next(self._events), yaml.CollectionEndEvent):
            within = (*path, len(items))
            self._lines[within] = _line(event)
            items.append(self._value(event, within))
        return items

    def _block(self, path: KeyPath) -> dict[str, Value]:
        block: dict[str, Value] = {}
        while not isinstance(event := next(self._events), yaml.CollectionEndEvent):
            self._refuse_extras(event, path)
            if not isinstance(event, yaml.ScalarEvent):
                raise self._error(event, "a key must be a text, not a block or a list", path)
            within = (*path, event.value)
            if event.value in block:
                first = self._lines[within]
                raise self._error(event, f"this key stands here a second time (first on line {first})", within)
            self._lines[within] = _line(event)
            block[event.value] = self._value(next(self._events), within)
        return block

    def _refuse_extras(self, event: yaml.Event, path: KeyPath) -> None:
        if isinstance(event, yaml.AliasEvent):
            raise self._error(event, 'aliases are not taken here; a text that starts with * must be quoted: "*"', path)
        if getattr(event, "anchor", None) is not None:
            raise self._error(event, "anchors are not taken here; a text that starts with & must be quoted", path)
        if getattr(event, "tag", None) is not None:
            raise self._error(event, "tags are not taken here; a text that starts with ! must be quoted", path)
        if isinstance(event, yaml.ScalarEvent) and _has_control_character(event.value):
            raise self._error(event, "control characters are not taken here", path)

    def _error(self, event: yaml.Event, sentence: str, path: KeyPath = ()) -> InputError:
        return InputError(sentence, source=self._source, line=_line(event), key=key_text(path))


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None, "the parser marks every event"
    return event.start_mark.line + 1


def _has_control_character(text: str) -> bool:
    """Whether a text has a control character or a surrogate, which cannot be written to a file; line ends and tabs are
    allowed.
    """
    if text.isprintable():  # nearly every text, and a hundred times faster
        return False
    return any(unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t" for character in text)


def _scalar(event: yaml.ScalarEvent) -> Value:
    """Value of a scalar: numbers and constants by the core rules of YAML 1.2; any other, and any quoted one, is a
    text.
    """
    text: str = event.value
    if event.style:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text
