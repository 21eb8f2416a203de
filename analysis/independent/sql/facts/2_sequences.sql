-- What each process delivered.

-- A delivery is left out when the next record of the same message and level in the same process is an UNDO.
CREATE OR REPLACE TEMP TABLE standing AS
SELECT process, record, message, level, at_ns FROM (
    SELECT *, lead(event) OVER (PARTITION BY process, message, level ORDER BY record) AS next_event
    FROM step WHERE event <> 'submit'
)
WHERE event = 'deliver' AND next_event IS DISTINCT FROM 'undo';

CREATE OR REPLACE TEMP TABLE run AS
SELECT run, bool_or(event = 'view') AS has_views FROM record JOIN process USING (process) GROUP BY run;

-- The highest level that anybody delivered at, and at least AGREED (1) in a run with views.
CREATE OR REPLACE TEMP TABLE judged_level AS
SELECT run, greatest(max(level), has_views::INT) AS level
FROM run LEFT JOIN (SELECT run, level FROM step JOIN process USING (process) WHERE event = 'deliver') USING (run)
GROUP BY run, has_views;

-- The judged sequence is what a process delivered for good, at level AGREED (1) or FINAL (2); where nobody did, what was
-- delivered optimistically (0).
CREATE OR REPLACE TEMP TABLE judged AS
SELECT process, record, message, at_ns
FROM standing JOIN process USING (process) JOIN judged_level USING (run)
WHERE (standing.level > 0) = (judged_level.level > 0);

-- The second delivery of a message in one judged sequence violates integrity; all other properties look at the first.
CREATE OR REPLACE TEMP TABLE delivery AS
SELECT *, row_number() OVER (PARTITION BY process ORDER BY record) AS position FROM (
    SELECT process, message, min(record) AS record, arg_min(at_ns, record) AS at_ns
    FROM judged GROUP BY process, message
);

-- What full members do not deliver, of the messages of their run.
CREATE OR REPLACE TEMP VIEW lacking AS
SELECT run, process, message FROM full_member JOIN message USING (run) ANTI JOIN delivery USING (process, message);

-- The direct causes of a message: what its sender submitted or delivered since its submission before. `after`: how many
-- submissions a process has made when a step is done.
CREATE OR REPLACE TEMP TABLE direct_cause AS
WITH done AS (
    SELECT process, message, is_submission,
        sum(is_submission::INT) OVER (PARTITION BY process ORDER BY record) AS after
    FROM (
        SELECT process, record, message, true AS is_submission FROM submission
        UNION ALL SELECT process, record, message, false FROM delivery
    )
)
SELECT effect.message, cause.message AS cause
FROM done AS effect JOIN done AS cause ON effect.process = cause.process AND cause.after = effect.after - 1
WHERE effect.is_submission;
