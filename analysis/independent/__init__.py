"""Independent checks of a run: every property once more, from its definition alone, in SQL.

`sql/facts/` reads trace records: processes, messages, sequences, views, sections, calls, and the completeness of the
records. `sql/properties/` has one file for each property, with the definition at its head: two views, `checked` and
`violation`. `sql/verdict.sql` makes verdicts of them. `judge` runs it all in DuckDB, over the tables of a run or over
histories in memory, thousands at once. `compare` compares the results with those of `analysis.checks`.

This package shares with `analysis.checks` only the names of properties and verdicts, and the evidence that each
property needs.
"""
