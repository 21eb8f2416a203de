-- Mutual exclusion: sections do not overlap in true time. Each is held against the latest end of those that began before.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT *, max(coalesce(end_ns, 9223372036854775807)) OVER (
    PARTITION BY run ORDER BY at_ns, process, record ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
) AS latest_end_ns
FROM section;

CREATE OR REPLACE TEMP VIEW violation AS
SELECT run, at_ns, process, message, 'entered while another was inside by' AS what
FROM checked WHERE latest_end_ns > at_ns;
