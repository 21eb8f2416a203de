-- Uniform agreement: what anybody delivers, every full member delivers. An optimistic delivery at a full member that is
-- never undone counts, too.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT run, message, min(at_ns) AS at_ns FROM (
    SELECT run, message, at_ns FROM delivery JOIN process USING (process)
    UNION ALL SELECT run, message, at_ns FROM left_standing
)
GROUP BY run, message;

CREATE OR REPLACE TEMP VIEW violation AS
SELECT run, at_ns, process, message, 'delivered by another process, but not by' AS what
FROM checked JOIN lacking USING (run, message);
