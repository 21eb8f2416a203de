-- Indivisibility: the sequences of all objects, of ordered calls, fit into one order: the relation "some object gets m
-- immediately before m'" has no cycle. Objects of processes that crashed or are over are not looked at.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT got_ordered.* FROM got_ordered JOIN ending USING (process) WHERE event = 'stop';

-- The height of a call is the length of the longest chain that leads to it. On a cycle it would grow for ever, so it stops at
-- the number of calls of the run, which no chain without a cycle has.
CREATE OR REPLACE TEMP TABLE height AS
WITH RECURSIVE next AS (
    SELECT DISTINCT run, before AS message, message AS next FROM (
        SELECT run, message, lag(message) OVER (PARTITION BY process, object ORDER BY position) AS before FROM checked
    )
    WHERE before IS NOT NULL
),
calls AS (
    SELECT run, count(DISTINCT message) AS calls FROM checked GROUP BY run
),
climbing(message, height) USING KEY (message) AS (
    SELECT DISTINCT message, 0::BIGINT FROM next
    UNION
    SELECT next.next, max(climbing.height) + 1
    FROM climbing JOIN next USING (message) JOIN calls USING (run)
    LEFT JOIN recurring.climbing AS known ON known.message = next.next
    WHERE climbing.height < calls
    GROUP BY next.next, known.height
    HAVING known.height IS NULL OR max(climbing.height) + 1 > known.height
)
FROM climbing;

CREATE OR REPLACE TEMP VIEW violation AS
SELECT checked.run, at_ns, process, message, format('no one order agrees with what is got by object {} of', object) AS what
FROM checked JOIN height USING (message)
JOIN (SELECT run, count(DISTINCT message) AS calls FROM checked GROUP BY run) AS calls ON calls.run = checked.run
WHERE height >= calls;
