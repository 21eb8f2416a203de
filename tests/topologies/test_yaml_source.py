"""The one YAML reader: accepted files, refused files with their messages, and no other error."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from topologies.formats.errors import InputError, did_you_mean
from topologies.formats.yaml_source import MAX_BYTES, MAX_DEPTH, key_text, read, reads


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1", {"a": 1}),
        ("a: -12\nb: 1.5\nc: true\nd: false\ne: null\nf: ~\ng:", {
            "a": -12, "b": 1.5, "c": True, "d": False, "e": None, "f": None, "g": None,
        }),
        ("a: [no, on, 1:30, 007, 1_000, 0x10, .inf, 2001-01-01, 1e5]", {
            "a": ["no", "on", "1:30", "007", "1_000", "0x10", ".inf", "2001-01-01", "1e5"],
        }),
        ("a: '1'\nb: \"true\"", {"a": "1", "b": "true"}),
        ("1: a\ntrue: b", {"1": "a", "true": "b"}),
        ("<<: {a: 1}", {"<<": {"a": 1}}),
        ("- 10 Mbit/s\n- 1 %\n- p1/*", ["10 Mbit/s", "1 %", "p1/*"]),
        ("# only a comment\n---\nx", "x"),
        ("a: 99999999999999999999", {"a": "99999999999999999999"}),
        ("\ufeffa: 1".encode(), {"a": 1}),
        ("a: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
    ],
)  # fmt: skip
def test_reads_plain_values(text: str | bytes, value: object) -> None:
    assert reads(text, "x.yaml").value == value


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "x.yaml: the file is empty"),
        ("# nothing\n", "x.yaml: the file is empty"),
        ("a: 1\nb: 2\na: 3", "x.yaml:3: a: this key stands here a second time (first on line 1)"),
        ("x:\n  y: {a: 1, a: 2}", "x.yaml:2: x.y.a: this key stands here a second time (first on line 2)"),
        ("a: &x 1", "x.yaml:1: a: anchors are not taken here; a text that starts with & must be quoted"),
        ("a: 1\nb: *a", 'x.yaml:2: b: aliases are not taken here; a text that starts with * must be quoted: "*"'),
        ("*: 1", "x.yaml:1: not valid YAML: did not find expected alphabetic or numeric character; "
         'a text that starts with * must be quoted: "*"'),
        ("a: !!python/object:os.system x", "x.yaml:1: a: tags are not taken here; a text that starts with ! must be "
         "quoted"),
        ("a: 1\n---\nb: 2", "x.yaml:2: the file holds a second document; give each file one"),
        ("? [a]\n: 1", "x.yaml:1: a key must be a text, not a block or a list"),
        ("a:\n\tb: 1", "x.yaml:2: not valid YAML: found character that cannot start any token; "
         "indent with spaces, and quote what begins with % or @"),
        ("a: b: c", "x.yaml:1: not valid YAML: mapping values are not allowed in this context"),
        ("a: 1\nb: 'x", "x.yaml:2: not valid YAML: found unexpected end of stream"),
        ("a: 1\nb: \x07", "x.yaml:2: not valid YAML: this line holds a control character; remove it"),
        ('a: "\\e[31m"', "x.yaml:1: a: control characters are not taken here"),
        ('a: "\\ud800"', "x.yaml:1: not valid YAML: found invalid Unicode character escape code"),
        ('a: "\\UFFFFFFFF"', "x.yaml:1: not valid YAML: found invalid Unicode character escape code"),
        (b"a: 1\nb: \xff", "x.yaml:2: not UTF-8 (byte 0xff); save the file as UTF-8"),
        ("a: " + "x" * MAX_BYTES, "x.yaml: the file is larger than 1024 KiB"),
    ],
)  # fmt: skip
def test_refuses_with_one_sentence(text: str | bytes, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        reads(text, "x.yaml")
    assert str(caught.value) == sentence


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_refuses_depth_before_it_exhausts_the_stack(opening: str) -> None:
    with pytest.raises(InputError, match=f"nested more than {MAX_DEPTH} deep"):
        reads(opening * 50_000, "x.yaml")


def test_knows_the_line_of_every_key_and_item() -> None:
    document = reads("a:\n  b: 1\n  c:\n    - x\n    - {d: 2,\n       e: 3}\n", "x.yaml")
    assert document.lines == {
        (): 1, ("a",): 1, ("a", "b"): 2, ("a", "c"): 3, ("a", "c", 0): 4, ("a", "c", 1): 5,
        ("a", "c", 1, "d"): 5, ("a", "c", 1, "e"): 6,
    }  # fmt: skip
    assert document.line(("a", "c", 1, "missing", "deeper")) == 5
    assert str(document.error(("a", "c", 1, "e"), "is wrong")) == "x.yaml:6: a.c[1].e: is wrong"


def test_key_text_stays_one_short_line() -> None:
    assert key_text(()) is None
    assert key_text(("a", 2, "b")) == "a[2].b"
    assert key_text(("a", "b\nc")) == "a.'b\\nc'"
    assert key_text(("a", "")) == "a.''"
    assert len(key_text(["k" * 40] * 100) or "") <= 121


def test_what_is_no_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    for path, sentence in (
        (tmp_path / "none.yaml", f"{tmp_path}/none.yaml: there is no such file"),
        (tmp_path, f"{tmp_path}: this is a directory; give the file in it"),
        (Path("a\0b"), "the file cannot be read"),
        (Path("a" * 5000), "the file cannot be read"),
    ):
        with pytest.raises(InputError, match=sentence):
            read(path)


def test_an_endless_file_is_read_no_further_than_the_limit() -> None:
    with pytest.raises(InputError, match="larger than 1024 KiB"):
        read(Path("/dev/zero"))


def test_a_pipe_is_as_good_as_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("a: 1",))
    writer.start()
    assert read(pipe).value == {"a": 1}
    writer.join()


def test_did_you_mean() -> None:
    assert did_you_mean("nodez", ["nodes", "bus"]) == "; did you mean nodes?"
    assert did_you_mean("zzz", ["nodes", "bus"]) == ""
    assert did_you_mean("n" * 10**6, ["nodes"]) == ""


PRINTABLE = st.text(alphabet=st.characters(exclude_categories=["Cc", "Cs"]), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers(-(10**18), 10**18) | PRINTABLE
VALUES = st.recursive(
    SCALARS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(PRINTABLE, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_what_we_write_we_read_back(value: object) -> None:
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    assert reads(text, "x.yaml").value == value


def test_more_values_than_a_second_is_enough_for_are_refused() -> None:
    with pytest.raises(InputError, match="more than 50,000 values"):
        reads("".join(f"k{number}: 1\n" for number in range(60_000)), "x.yaml")
