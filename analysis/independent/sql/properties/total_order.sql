-- Total order: if anybody delivers m before m', then everybody delivers m' only after m. That is: a message has the same
-- immediate predecessor in every sequence that contains it, and no chain of predecessors leads back to where it began.
-- Processes that others have ended, or that have left, are not looked at; the predecessor of a joiner's first delivery is
-- not compared.
--
-- In a run with views, view by view: (1) Of what any two processes deliver in a view, each to before its first void
-- delivery, one is a prefix of the other. (2) The same holds for all of what they deliver there of any two that have
-- certainly not closed the view: those that end in it with ENDED or STOP, and those that crash there after a void
-- delivery. (3) At level FINAL nobody delivers more in a view than a survivor that has the state.
-- These orders are one order only if nobody breaks view agreement, same view or virtual synchrony: else it is not passed (the
-- caller fills `excuse`).

CREATE OR REPLACE TEMP VIEW checked AS
SELECT process.run, has_views, is_joiner, delivery.*,
    lag(message) OVER (PARTITION BY process ORDER BY position) AS predecessor
FROM delivery JOIN process USING (process) JOIN run USING (run)
LEFT JOIN ending USING (process)
WHERE has_views OR ending.event IS DISTINCT FROM 'ended';

-- Where the predecessors of each message lead, in strides: from the first delivery of one process to that of another, which
-- has delivered more before. A stride leads on to all that begin where it ends.
CREATE OR REPLACE TEMP TABLE stride AS
WITH RECURSIVE led(message, back_to) AS (
    SELECT late.message, early.message
    FROM checked AS late JOIN checked AS early USING (process)
    WHERE NOT early.has_views AND early.position = 1 AND late.position > 1
        AND late.message IN (SELECT message FROM checked WHERE position = 1)
    UNION
    SELECT led.message, further.message
    FROM led JOIN checked AS late ON late.message = led.back_to AND late.position > 1
    JOIN checked AS further ON further.process = late.process AND further.position = 1
)
FROM led;

CREATE OR REPLACE TEMP VIEW violation AS
WITH in_place AS (
    SELECT in_view.*, bool_or(void.message IS NOT NULL) OVER from_begin AS is_spoilt,
        survivor.process IS NOT NULL AS survives,
        survivor.process IS NULL AND (
            ending.process IS NOT NULL OR bool_or(void.message IS NOT NULL) OVER (PARTITION BY in_view.process, in_view.view)
        ) AS has_not_closed
    FROM in_view
    LEFT JOIN void USING (process, message)
    LEFT JOIN survivor ON (survivor.process, survivor.view) = (in_view.process, in_view.view)
    LEFT JOIN ending ON ending.process = in_view.process
    WINDOW from_begin AS (PARTITION BY in_view.process, in_view.view ORDER BY place)
),
survivor_end AS (
    SELECT survivor.run, survivor.view, min(count) AS count FROM (
        SELECT survivor.process, survivor.run, survivor.view, count(message) AS count
        FROM survivor JOIN stateful ON stateful.process = survivor.process AND from_view <= survivor.view + 1
        LEFT JOIN in_view ON (in_view.process, in_view.view) = (survivor.process, survivor.view)
        GROUP BY ALL
    ) AS survivor
    GROUP BY ALL
)
SELECT run, min(at_ns) AS at_ns, arg_min(process, at_ns) AS process, message, 'delivered after another message than elsewhere by' AS what
FROM checked WHERE NOT has_views AND NOT (is_joiner AND predecessor IS NULL)
GROUP BY run, message HAVING count(DISTINCT coalesce(predecessor, 0)) > 1
UNION ALL
SELECT run, at_ns, process, message, 'delivered first, and after itself elsewhere, by'
FROM checked JOIN stride USING (message) WHERE back_to = message AND position = 1
UNION ALL
SELECT run, max(at_ns), arg_max(process, at_ns), arg_max(message, at_ns), 'another message than elsewhere in this place of its view at'
FROM in_place WHERE NOT is_spoilt
GROUP BY run, view, place HAVING count(DISTINCT message) > 1
UNION ALL
SELECT run, max(at_ns), arg_max(process, at_ns), arg_max(message, at_ns), 'another message than elsewhere in this place of its view at'
FROM in_place WHERE has_not_closed
GROUP BY run, view, place HAVING count(DISTINCT message) > 1
UNION ALL
SELECT run, at_ns, process, message, 'delivered beyond what a survivor of the view has by'
FROM in_place JOIN survivor_end USING (run, view) JOIN judged_level USING (run)
WHERE level = 2 AND NOT survives AND place > survivor_end.count;
