-- Integrity: nobody delivers a message twice, or, at any level, one that its origin did not submit before, or other bytes
-- than its origin submitted (length or check sum differ; one mistake of a delivery that is not judged counts); a promised (agreed or final) delivery is not undone, and neither
-- is an optimistic delivery of what the same process has promised already.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT run, process, message, at_ns, row_number() OVER (PARTITION BY process, message ORDER BY record) AS nth
FROM judged JOIN process USING (process);

CREATE OR REPLACE TEMP VIEW violation AS
SELECT run, at_ns, process, message, 'delivered twice by' AS what FROM checked WHERE nth > 1
UNION ALL
SELECT run, at_ns, process, message, 'never submitted, but delivered by'
FROM checked ANTI JOIN submission USING (message)
WHERE nth = 1
UNION ALL
SELECT run, checked.at_ns, checked.process, message, 'delivered before it was submitted by'
FROM checked JOIN submission USING (message)
WHERE nth = 1 AND checked.at_ns < submission.at_ns
UNION ALL
SELECT run, step.at_ns, step.process, step.message,
    CASE
        WHEN judged.record IS NULL AND submission.record IS NULL THEN 'never submitted, but delivered by'
        WHEN judged.record IS NULL AND step.at_ns < submission.at_ns THEN 'delivered before it was submitted by'
        WHEN (step.size_bytes, step.checksum) <> (submission.size_bytes, submission.checksum)
            THEN 'delivered with another payload than was submitted by'
    END AS wrong
FROM step JOIN process ON process.process = step.process LEFT JOIN submission USING (message)
LEFT JOIN judged ON judged.process = step.process AND judged.record = step.record
WHERE step.event = 'deliver' AND wrong IS NOT NULL
UNION ALL
SELECT run, at_ns, process, message, 'undone although its delivery was promised by'
FROM (
    SELECT *, bool_or(event = 'deliver' AND level > 0) OVER (PARTITION BY process, message ORDER BY record) AS is_promised
    FROM step
)
JOIN process USING (process)
WHERE event = 'undo' AND (level > 0 OR is_promised);
