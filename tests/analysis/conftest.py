"""One Spark session for all tests of this folder: starting it costs more than most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from analysis import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with session.open_session() as opened:
        yield opened
