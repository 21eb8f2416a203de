-- View agreement: processes that install view n name the same members in the same order, each once, and tell their ranks
-- (`extra`) in this order; the numbers of one process's views ascend; it is a member of each; no view after its first one has the reason FIRST (1). It passes over no view, unless it goes
-- to one that goes on after a lost quorum (reason RESTORED, 8). Of an installation that a crash cut off, as far as it goes: it
-- is the last that the process recorded.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT installation.process, run, nth, installation.at_ns, view, view_before, reason, size,
    count(*) AS names, count(DISTINCT named.member) AS members, bool_and(extra = rank - 1) AS has_ranks, max(named.record) = any_value(last_record) AS is_last,
    bool_or((named.member, named.incarnation) = (process.member, process.incarnation)) AS names_itself
FROM installation JOIN process USING (process, run) JOIN named USING (process, nth)
JOIN (SELECT process, max(record) AS last_record FROM record GROUP BY process) USING (process)
GROUP BY ALL;

CREATE OR REPLACE TEMP VIEW violation AS
SELECT run, at_ns, process, NULL AS message, 'a view whose number does not ascend at' AS what
FROM checked WHERE view <= view_before
UNION ALL
SELECT run, at_ns, process, NULL, 'a first view after another one at' FROM checked WHERE reason = 1 AND nth > 1
UNION ALL
SELECT run, at_ns, process, NULL, 'a view is passed over at' FROM checked
WHERE reason NOT IN (1, 8) AND EXISTS (
    FROM installation AS between
    WHERE between.run = checked.run AND between.view > checked.view_before AND between.view < checked.view
)
UNION ALL
SELECT run, at_ns, process, NULL, 'a view with fewer members than it says at' FROM checked WHERE names < size AND NOT is_last
UNION ALL
SELECT run, at_ns, process, NULL, 'a view without the process that installs it at'
FROM checked WHERE names >= size AND NOT names_itself
UNION ALL
SELECT run, at_ns, process, NULL, 'a view that names a member twice at' FROM checked WHERE members < names
UNION ALL
SELECT run, at_ns, process, NULL, 'a view with ranks other than its order at' FROM checked WHERE NOT has_ranks
UNION ALL
SELECT run, max(at_ns), arg_max(process, at_ns), NULL, 'a view of another size than elsewhere at'
FROM checked GROUP BY run, view HAVING count(DISTINCT size) > 1
UNION ALL
SELECT run, max(at_ns), arg_max(process, at_ns), NULL, 'a view with another member than elsewhere at'
FROM checked JOIN named USING (process, nth)
GROUP BY run, view, rank HAVING count(DISTINCT (member, incarnation)) > 1;
