-- Agreement: what one full member delivers, every full member delivers. What one process that is present at the end
-- delivers after its last installation, all of them deliver after theirs. What a full member, or a process that is present
-- at the end, delivers optimistically, it undoes or delivers for good.

CREATE OR REPLACE TEMP VIEW obliging AS
SELECT run, message, min(at_ns) AS at_ns FROM delivery JOIN full_member USING (process) GROUP BY run, message;

CREATE OR REPLACE TEMP VIEW checked AS
SELECT run, message FROM obliging UNION SELECT run, message FROM at_the_end
UNION SELECT run, message FROM left_standing;

CREATE OR REPLACE TEMP VIEW violation AS
SELECT run, at_ns, process, message, 'delivered by another member, but not by' AS what
FROM obliging JOIN lacking USING (run, message)
UNION ALL
SELECT run, at_ns, process, message, 'delivered in the last view by another process, but not there by'
FROM lacking_at_the_end
UNION ALL
SELECT run, at_ns, process, message, 'delivered optimistically, and neither undone nor delivered for good, by'
FROM left_standing;
