"""Validation of a file's plain values: the base of all raw models, their quantities, and their errors.

A raw model defines exactly the valid content of a file. `validated` turns pydantic's errors into InputErrors with file,
line, key and a sentence about what is allowed; `json_schema` is the same for editors.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from topologies.formats import units
from topologies.formats.errors import InputError, did_you_mean
from topologies.formats.units import Unit, shown
from topologies.formats.yaml_source import Document, KeyPath, Value

NAME_PATTERN = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"
MAX_NAME = 15
"""Most characters of a name of a partition or node: the limit for names of network devices."""
MAX_TITLE = 40
MAX_TEXT = 2000


class RawBlock(BaseModel):
    """A block of keys. Unknown and missing keys are named together with what is allowed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    may_be_empty: ClassVar[frozenset[str]] = frozenset()
    """Keys that may have no value."""

    @classmethod
    def keys(cls) -> list[str]:
        """Keys as spelled in files, in the order of the model."""
        return [info.alias or name for name, info in cls.model_fields.items()]

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, given: object) -> object:
        allowed = cls.keys()
        if not isinstance(given, dict):
            raise ValueError(f"expected a block with the keys {', '.join(allowed)}, got {shown(given)}")
        for key in given:
            if key not in allowed:
                hint = did_you_mean(str(key), allowed)
                hint = f"{hint} Allowed here:" if hint else "; allowed here:"
                raise _at_key(str(key), f"unknown key{hint} {', '.join(allowed)}")
            if given[key] is None and key not in cls.may_be_empty:
                raise _at_key(str(key), "expected a value, got nothing; give it one or leave the key out")
        for name, info in cls.model_fields.items():
            if info.is_required() and (info.alias or name) not in given:
                raise ValueError(f"the key {info.alias or name} is missing: {info.description}")
        return given


class OneOrMany:
    """Annotation of a list field: a single item needs no brackets."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            lambda given: given if isinstance(given, list) else [given], handler(source)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        many = handler(schema)
        return {"anyOf": [many["items"], many]}


def quantity(unit: Unit, *, zero: bool = True, also: Sequence[str] = ()) -> WithJsonSchema:
    """JSON Schema of a quantity; `zero` if a bare 0 is one, `also` lists words that may replace it."""
    either: list[dict[str, Any]] = [{"type": "string", "pattern": unit.pattern}]
    either += [{"const": 0}] if zero else []
    either += [{"const": word} for word in also]
    return WithJsonSchema({"anyOf": either, "examples": [unit.example]})


def whole(low: int, high: int) -> Any:
    """Annotation of a whole number from `low` to `high`."""

    def parse(given: object) -> int:
        if not isinstance(given, int) or isinstance(given, bool) or not low <= given <= high:
            raise ValueError(f"expected a whole number from {low} to {high}, got {shown(given)}")
        return given

    return Annotated[int, PlainValidator(parse), WithJsonSchema({"type": "integer", "minimum": low, "maximum": high})]


def parse_name(given: object) -> str:
    """Name of a partition or node. Single hyphens only, so that `a--b` can name the link between two partitions."""
    if isinstance(given, str) and len(given) <= MAX_NAME and re.fullmatch(NAME_PATTERN, given):
        return given
    raise ValueError(
        f"expected a name of lower-case letters, digits and single hyphens that starts with a letter and has "
        f"at most {MAX_NAME} characters, got {shown(given)}"
    )


def parse_title(given: object) -> str:
    """Name of a topology or experiment, which is also a directory's name."""
    if isinstance(given, str) and len(given) <= MAX_TITLE and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", given):
        return given
    raise ValueError(
        f"expected a name of lower-case letters, digits and single hyphens with at most {MAX_TITLE} characters, "
        f"got {shown(given)}"
    )


def parse_text(given: object) -> str:
    if isinstance(given, str) and len(given) <= MAX_TEXT:
        return given
    raise ValueError(f"expected a text of at most {MAX_TEXT} characters, got {shown(given)}")


def choice_parser(kinds: type[EnumType]) -> Callable[[object], EnumType]:
    """Parser of one of an enum's values."""
    words = [str(kind.value) for kind in kinds]

    def parse(given: object) -> EnumType:
        if isinstance(given, str) and given in words:
            return kinds(given)
        hint = did_you_mean(given, words) if isinstance(given, str) else ""
        raise ValueError(f"expected one of {', '.join(words)}, got {shown(given)}{hint}")

    return parse


def choice(kinds: type[enum.Enum]) -> Any:
    """Annotation of a field that holds one of an enum's values."""
    schema = WithJsonSchema({"enum": [kind.value for kind in kinds]})
    return Annotated[kinds, PlainValidator(choice_parser(kinds)), schema]


EnumType = TypeVar("EnumType", bound=enum.Enum)
Model = TypeVar("Model", bound=RawBlock)

TEXT_SCHEMA = WithJsonSchema({"type": "string", "maxLength": MAX_TEXT})
_NAME = {"type": "string", "maxLength": MAX_NAME, "pattern": f"^{NAME_PATTERN}$"}
_TITLE = {"type": "string", "maxLength": MAX_TITLE, "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"}

Name = Annotated[str, PlainValidator(parse_name), WithJsonSchema(_NAME)]
Title = Annotated[str, PlainValidator(parse_title), WithJsonSchema(_TITLE)]
Text = Annotated[str, PlainValidator(parse_text), TEXT_SCHEMA]
Duration = Annotated[int, PlainValidator(units.parse_duration), quantity(units.DURATION)]
Offset = Annotated[int, PlainValidator(units.parse_offset), quantity(units.DURATION)]
Rate = Annotated[int, PlainValidator(units.parse_rate), quantity(units.RATE, zero=False)]
Ratio = Annotated[float, PlainValidator(units.parse_ratio), quantity(units.RATIO)]
Frames = Annotated[int, PlainValidator(units.parse_frames), quantity(units.FRAMES, zero=False)]
Burst = Annotated[float, PlainValidator(units.parse_burst), quantity(units.FRAMES, zero=False)]
Size = Annotated[int, PlainValidator(units.parse_size), quantity(units.SIZE)]
EventRate = Annotated[float, PlainValidator(units.parse_event_rate), quantity(units.EVENT_RATE)]
Drift = Annotated[float, PlainValidator(units.parse_drift), quantity(units.DRIFT)]


def validated(model: type[Model], document: Document) -> Model:
    """The document as `model`. Raises InputError: the first mistake in the file, the others in `also`."""
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        details = error.errors(include_url=False)
    found = sorted((_input_error(detail, document) for detail in details), key=lambda one: one.line or 0)
    first, *others = found
    raise InputError(first.sentence, source=first.source, line=first.line, key=first.key, also=others)


def json_schema(model: type[RawBlock], title: str) -> str:
    """Text of a `schema.json`, by which editors check and complete a file."""
    body = _for_editors(model.model_json_schema())
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **body, "title": title}
    return json.dumps(schema, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _at_key(key: str, sentence: str) -> PydanticCustomError:
    # In a tuple: pydantic puts a text into its own message, which fails for half a character (a lone surrogate).
    return PydanticCustomError("key", "{sentence}", {"key": (key,), "sentence": sentence})


def _input_error(detail: ErrorDetails, document: Document) -> InputError:
    context = detail.get("ctx", {})
    location: tuple[str | int, ...] = detail["loc"]
    if detail["type"] == "key":
        location += context["key"]
    return document.error(_path(location, document.value), _sentence(detail))


def _sentence(detail: ErrorDetails) -> str:
    """Sentence of an error: that of a validator here, or else pydantic's."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "list_type":
        return f"expected a list, got {shown(detail['input'])}"
    if kind == "dict_type":
        return f"expected a block of keys, got {shown(detail['input'])}"
    return detail["msg"]


def _path(location: Sequence[str | int], value: Value) -> KeyPath:
    """Location in the file, without parts that pydantic adds (`[key]`, the 0 of a list without brackets)."""
    path: KeyPath = ()
    for part in location:
        if isinstance(value, dict) and isinstance(part, str) and part in value:  # noqa: SIM114 (mypy narrows each)
            path, value = (*path, part), value[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            path, value = (*path, part), value[part]
    return path


def _for_editors(schema: Any) -> Any:
    """Schema without pydantic's additions that files do not have: null for an omitted key, class names, typed
    defaults.
    """
    if isinstance(schema, list):
        return [_for_editors(one) for one in schema if one != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: _for_editors(value)
        for key, value in schema.items()
        if key != "default" and not (key == "title" and isinstance(value, str))
    }
    alternatives = kept.get("anyOf", [])
    if len(alternatives) == 1:
        del kept["anyOf"]
        kept = alternatives[0] | kept
    return kept
