-- Validity: a full member delivers what it submits.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT run, process, message, at_ns FROM submission JOIN full_member USING (process);

CREATE OR REPLACE TEMP VIEW violation AS
SELECT run, at_ns, process, message, 'its own submission is not delivered by' AS what
FROM checked ANTI JOIN delivery USING (process, message);
