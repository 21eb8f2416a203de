"""Size of the tables of a run directory, which may be of a stranger: a few bytes of Parquet can encode a billion equal
rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds

MAX_ROWS: Final = 1 << 28
MAX_GROUP_ROWS: Final = 1 << 20
"""A group of rows is read at once. The analysis writes smaller ones."""
ROWS_OF_NOTHING: Final = 1 << 20
"""A table may have so many rows, and one more for each byte. A row of the analysis takes at least some bytes, because
times and numbers differ.
"""


def table_at(path: Path, most_rows: int = MAX_ROWS) -> ds.Dataset:
    """A table: a Parquet file, or a directory of parts. Raises FileNotFoundError; ValueError for one that cannot be
    read, or has too many rows, which are counted before any is read.
    """
    try:
        found = ds.dataset(path, format="parquet")
        groups = [group.num_rows for part in found.get_fragments() for group in part.row_groups]
        size_bytes = sum(Path(file).stat().st_size for file in found.files)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise ValueError(" ".join(str(error).split()) or "it is no table") from error
    most_rows = min(most_rows, ROWS_OF_NOTHING + size_bytes)
    if sum(groups) > most_rows or max(groups, default=0) > MAX_GROUP_ROWS:
        raise ValueError(f"it has more than {most_rows:,} rows, or more than {MAX_GROUP_ROWS:,} in a group")
    return found
