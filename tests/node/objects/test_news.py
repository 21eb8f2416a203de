"""News as bytes: they decode to the same value, and nothing else decodes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import DropReason, LocalError, RemoteError
from node.objects.addresses import (
    MAX_ADDRESSED,
    MAX_TIMESTAMP,
    GroupId,
    News,
    NewsKind,
    Operation,
    Reference,
    decode_news,
    encode_news,
)

GROUP = GroupId(2, 7, 1, 9)
OBJECTS = tuple(Reference(member, 1, 1) for member in range(1, 4))

references = st.builds(
    Reference, st.integers(0, 0xFFFE), st.integers(1, 0xFFFF), st.integers(0, 14).map(lambda space: space * 4096 + 1)
)
groups = st.builds(
    GroupId, st.integers(0, 0xFFF), st.integers(0, 0xFFFE), st.integers(1, 0xFFFF), st.integers(1, 0xFFFF)
)


@given(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(NewsKind),
            "operation": st.sampled_from(Operation),
            "objects": st.just(()) | st.lists(references, max_size=20).map(tuple),
            "group": st.none() | groups,
            "is_atomic": st.booleans(),
            "timestamp": st.integers(0, MAX_TIMESTAMP),
        }
    )
)
def test_what_was_meant_comes_back(words: dict[str, Any]) -> None:
    try:
        news = News(**words)
    except LocalError:
        assert words["kind"] not in (NewsKind.ABORTED, NewsKind.UNREACHABLE, NewsKind.DONE, NewsKind.REFUSED)
        return
    assert decode_news(encode_news(news)) == news


def test_the_most_objects_fit() -> None:
    objects = tuple(Reference(1, 1, number) for number in range(1, MAX_ADDRESSED + 1))
    news = News(kind=NewsKind.RESOLVED, objects=objects, group=GROUP)
    assert decode_news(encode_news(news)) == news


@pytest.mark.parametrize(
    ("kind", "objects", "group", "sentence"),
    [
        (NewsKind.RESOLVED, (), GROUP, "cannot name 0 objects"),
        (NewsKind.RESOLVED, OBJECTS, None, "must name a group"),
        (NewsKind.STATE_WANTED, OBJECTS, GROUP, "cannot name 3 objects"),
        (NewsKind.JOINED, (), GROUP, "cannot name 0 objects"),
        (NewsKind.NO_GROUP, (), None, "must name a group"),
    ],
)
def test_news_that_cannot_be_are_refused(
    kind: NewsKind, objects: tuple[Reference, ...], group: GroupId | None, sentence: str
) -> None:
    with pytest.raises(LocalError, match=sentence):
        News(kind=kind, objects=objects, group=group)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", DropReason.TRUNCATED),
        (bytes(8), DropReason.TRUNCATED),
        (bytes(20), DropReason.TRUNCATED),
        ((3 | 1 << 17).to_bytes(8, "big") + bytes(8), DropReason.MALFORMED),
    ],
    ids=["nothing", "one word", "half a word too many", "an announced group that does not follow"],
)
def test_bytes_that_are_no_news_are_refused(data: bytes, reason: DropReason) -> None:
    with pytest.raises(RemoteError) as caught:
        decode_news(data)
    assert caught.value.reason is reason
