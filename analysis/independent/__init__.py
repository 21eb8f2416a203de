"""A third opinion on the orders of a run: every property once more, from its definition alone, in SQL.

`sql/facts/` reads trace records: processes, messages, sequences, views, sections, calls, and how far the records can be
trusted. `sql/properties/` has one file for each property, with the definition at its head: two views, `checked` and
`violation`. `sql/verdict.sql` makes verdicts of them. `judge` runs it all in DuckDB, over the tables of a run or over
histories in memory, thousands at once. `compare` holds the answers against the product's.

Nothing here is shared with `analysis.checks` but the names of properties and verdicts, and which properties need what
evidence.
"""
