-- Atomicity: of an atomic call all objects that it is for get it, at full members, or none does; and none does, at any
-- incarnation, if its caller says ABORTED. If the caller lives on and says neither ABORTED, REFUSED nor UNREACHABLE, all get
-- it. A call that is not atomic has what it asks for.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT run, message FROM call WHERE is_known;

CREATE OR REPLACE TEMP VIEW violation AS
WITH shared AS (
    SELECT message, run, at_ns, caller_lives, min(owed.process) AS process, bool_or(has_got) AS some_got,
        bool_and(has_got) AS all_got,
        message IN (SELECT message FROM told) AS is_told
    FROM call JOIN owed USING (message) WHERE is_atomic GROUP BY message, run, at_ns, caller_lives
)
SELECT DISTINCT call.run, call.at_ns, got.process, message, 'got by an object although it was aborted, for objects of' AS what
FROM call JOIN got USING (message) JOIN process ON process.process = got.process
JOIN is_for ON (is_for.message, is_for.member, is_for.object) = (message, process.member, got.object)
WHERE is_atomic AND message IN (SELECT message FROM told WHERE code = 'aborted')
UNION ALL
SELECT run, at_ns, process, message, 'got by some objects and not by others, for objects of' FROM shared WHERE some_got AND NOT all_got
UNION ALL
SELECT run, at_ns, process, message, 'got by nobody, and its caller was not told, for objects of'
FROM shared WHERE NOT some_got AND caller_lives AND NOT is_told;
