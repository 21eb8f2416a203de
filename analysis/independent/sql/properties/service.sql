-- Service: a full member is granted what it requests, and leaves it.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT run, process, message, at_ns FROM submission JOIN full_member USING (process);

CREATE OR REPLACE TEMP VIEW violation AS
SELECT run, at_ns, process, message, 'a request is never granted to' AS what
FROM checked ANTI JOIN section USING (process, message)
UNION ALL
SELECT section.run, at_ns, process, message, 'a section is never left by'
FROM section JOIN full_member USING (process) WHERE end_ns IS NULL;
