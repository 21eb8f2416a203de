-- Service: a full member, and a process that is present at the end, is granted what it requests, and leaves it.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT run, process, message, at_ns FROM submission JOIN process USING (process)
WHERE process IN (SELECT process FROM full_member UNION SELECT process FROM present);

CREATE OR REPLACE TEMP VIEW violation AS
SELECT run, at_ns, process, message, 'a request is never granted to' AS what
FROM checked ANTI JOIN section USING (process, message)
UNION ALL
SELECT section.run, at_ns, process, message, 'a section is never left by'
FROM section
WHERE end_ns IS NULL AND process IN (SELECT process FROM full_member UNION SELECT process FROM present);
