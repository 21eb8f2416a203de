-- Validity: a full member, and a process that is present at the end, delivers what it submits.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT run, process, message, at_ns FROM submission JOIN process USING (process)
WHERE process IN (SELECT process FROM full_member UNION SELECT process FROM present);

CREATE OR REPLACE TEMP VIEW violation AS
SELECT run, at_ns, process, message, 'its own submission is not delivered by' AS what
FROM checked ANTI JOIN delivery USING (process, message);
