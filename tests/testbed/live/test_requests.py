"""Requests as an attacker writes them: each is valid or an InputError of one line, never anything else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from testbed.live import requests as asks
from topologies.formats.errors import InputError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = sorted({key for model in asks.VERBS.values() for key in model.keys()})  # noqa: SIM118  # not a mapping's


@given(st.sampled_from(sorted(asks.VERBS)) | JSON, st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5))
def test_anything_is_understood_or_refused_in_a_sentence(verb: object, words: dict[str, object]) -> None:
    try:
        found, _words = asks.parse({"do": verb, **words})
    except InputError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
    else:
        assert found in asks.VERBS
