-- Call agreement: a call that is not atomic and whose caller lives on (its process ends with STOP), or (an ordered one) that
-- an object of a full member gets, all objects that it is for get, at full members, unless that is excused.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT run, message FROM call
WHERE is_known AND NOT is_atomic
  AND (caller_lives OR is_ordered AND message IN (SELECT message FROM owed WHERE has_got));

CREATE OR REPLACE TEMP VIEW violation AS
SELECT checked.run, at_ns, owed.process, message, format('not got by object {} of', owed.object) AS what
FROM checked JOIN owed USING (message) JOIN call USING (message)
WHERE NOT has_got AND NOT is_excused;
