"""Reference of a file format as Markdown, from its raw model: a table for each block of keys.

The texts are those of the JSON schema beside the files, so that page, editor and error messages agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topologies.formats import units
from topologies.formats.schema import RawBlock

Schema = Mapping[str, Any]

_REFERENCE = "#/$defs/"
_KINDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
_SHARED_AT_LEAST = 3
"""Least number of keys of a block to which another block's table refers instead of repeating them."""


def markdown(model: type[RawBlock], title: str, introduction: Sequence[str]) -> str:
    """The whole page: each block once, in the order of its first use."""
    schema = model.model_json_schema()
    blocks: dict[str, Schema] = schema.get("$defs", {})
    order = list(_met(schema, blocks))
    lines = [f"# {title}", "", *introduction, "", *_table(schema, blocks)]
    for name in order:
        lines += ["", f"## {_heading(name)}", "", _sentence(blocks[name]), "", *_table(blocks[name], blocks)]
    return "\n".join(lines) + "\n"


def _met(schema: Schema, blocks: Mapping[str, Schema]) -> Iterator[str]:
    """Names of the blocks below `schema`, each once, depth first."""
    seen: set[str] = set()

    def visit(part: Any) -> Iterator[str]:
        for name in _references(part):
            if name not in seen:
                seen.add(name)
                yield name
                yield from visit(blocks[name].get("properties", {}))

    yield from visit(schema.get("properties", {}))


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        for key, value in part.items():
            if key == "$ref":
                yield value.removeprefix(_REFERENCE)
            else:
                yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)


def _table(schema: Schema, blocks: Mapping[str, Schema]) -> list[str]:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    if not properties:
        return ["It has no keys."]
    required = set(schema.get("required", ()))
    shared = _shared(properties, blocks)
    left_out = set(blocks[shared]["properties"]) if shared else set()
    lines = ["| key | takes | meaning |", "|---|---|---|"]
    for key, value in properties.items():
        if key not in left_out:
            must = " (required)" if key in required else ""
            meaning = _cell(str(value.get("description", "")))
            lines.append(f"| `{key}`{must} | {_cell(_takes(value, blocks))} | {meaning}{_default(value)} |")
    return [*lines, *([f"| the keys of [{_title(shared)}](#{_anchor(shared)}) | | |"] if shared else [])]


def _shared(properties: Mapping[str, Schema], blocks: Mapping[str, Schema]) -> str:
    """The greatest other block whose keys are all in this one with the same meaning; empty if there is none."""
    found = [
        name
        for name, block in blocks.items()
        if _SHARED_AT_LEAST <= len(block.get("properties", {})) < len(properties)
        and block["properties"].items() <= properties.items()
    ]
    return max(found, key=lambda name: len(blocks[name]["properties"])) if found else ""


def _takes(value: Schema, blocks: Mapping[str, Schema]) -> str:
    """Values that a key accepts, in a few words."""
    if "$ref" in value:
        name = value["$ref"].removeprefix(_REFERENCE)
        return f"[{_title(name)}](#{_anchor(name)})"
    if "anyOf" in value or "oneOf" in value:
        alternatives = [one for one in value.get("anyOf", value.get("oneOf", ())) if one != {"type": "null"}]
        has_unit = any("pattern" in one for one in alternatives)
        # A bare 0 is a quantity without a unit, which the rows do not mention.
        return _either([_takes(one, blocks) for one in alternatives if not (has_unit and one.get("const") == 0)])
    if "enum" in value:
        return _either([f"`{word}`" for word in value["enum"]])
    if "const" in value:
        return f"`{value['const']}`"
    return _plain(value, blocks)


def _plain(value: Schema, blocks: Mapping[str, Schema]) -> str:
    kind = value.get("type", "anything")
    if isinstance(kind, list):
        return _either([_KINDS.get(one, "block") for one in kind])
    if kind == "array":
        return f"list of {_grouped(_takes(value['items'], blocks))}" if value.get("items") else "list"
    if kind == "object":
        below = value.get("additionalProperties") or next(iter(value.get("patternProperties", {}).values()), None)
        return f"names, each with {_grouped(_takes(below, blocks))}" if isinstance(below, Mapping) else "block"
    if "minimum" in value and "maximum" in value:
        return f"whole number, {value['minimum']} to {value['maximum']}"
    return "quantity" if "pattern" in value and "maxLength" not in value else _KINDS.get(str(kind), str(kind))


def _grouped(words: str) -> str:
    return f"({words})" if " or " in words else words


def _either(words: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(words))
    return " or ".join((", ".join(distinct[:-1]), distinct[-1])) if len(distinct) > 1 else "".join(distinct)


def _default(value: Schema) -> str:
    """Default of a key, if it is one word."""
    default = value.get("default")
    if isinstance(default, bool) or not isinstance(default, int | float | str) or default in (0, ""):
        return ""
    if any(one.get("pattern") == units.DURATION.pattern for one in value.get("anyOf", ())):
        default = units.format_duration(int(default))
    return f". Default: `{default}`"


def _title(name: str) -> str:
    """`RawRateChange` -> `rate change`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.removeprefix("Raw")).lower()


def _heading(name: str) -> str:
    return _title(name).capitalize()


def _anchor(name: str) -> str:
    return _title(name).replace(" ", "-")


def _sentence(schema: Schema) -> str:
    return " ".join(str(schema.get("description", "")).split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
