-- Clock condition: what happened before an event has a smaller timestamp (reports TIMESTAMP). Happened-before is local order
-- and, from a submission (and the first report after it, which is that of sending it or of something earlier) to each
-- delivery of it.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT run, process, record, at_ns, unsigned(value) AS value FROM report JOIN process USING (process) WHERE code = 'timestamp';

-- A message is told in two stages: 0, its submission, and 1, the first report after that. A delivery tells what came before
-- stage 1 if that was earlier in true time, else what came before stage 0.
CREATE OR REPLACE TEMP TABLE stage AS
WITH sending AS (
    SELECT submission.message, submission.process, submission.record, checked.record AS sent_record, checked.at_ns AS sent_ns
    FROM submission ASOF LEFT JOIN checked
        ON checked.process = submission.process AND checked.record > submission.record
)
SELECT message, process, 0 AS stage, record, NULL::BIGINT AS at_ns FROM sending
UNION ALL
SELECT message, process, 1, sent_record, sent_ns FROM sending WHERE sent_record IS NOT NULL;

CREATE OR REPLACE TEMP TABLE tells AS
SELECT step.process, step.record, step.message,
    (last.message IS NOT NULL AND (last.at_ns, last.process, last.record) < (step.at_ns, step.process, step.record))::INT AS stage
FROM step JOIN submission USING (message) LEFT JOIN stage AS last ON last.message = step.message AND last.stage = 1
WHERE event = 'deliver' AND (submission.at_ns, submission.process, submission.record) < (step.at_ns, step.process, step.record);

-- The greatest timestamp in the past of each stage, itself included: of the own reports, of the stages that were delivered
-- since the stage before, and of that one.
CREATE OR REPLACE TEMP TABLE greatest_past AS
WITH RECURSIVE in_order AS (
    SELECT process, record, message, stage,
        lag(message) OVER own AS message_before, lag(stage) OVER own AS stage_before, lag(record) OVER own AS record_before
    FROM stage WINDOW own AS (PARTITION BY process ORDER BY record, stage, message)
),
edge AS (
    SELECT message_before AS from_message, stage_before AS from_stage, message, stage FROM in_order WHERE message_before IS NOT NULL
    UNION
    SELECT tells.message, tells.stage, in_order.message, in_order.stage
    FROM tells JOIN in_order ON in_order.process = tells.process AND tells.record < in_order.record
        AND tells.record > coalesce(record_before, 0)
),
past(message, stage, value) USING KEY (message, stage) AS (
    SELECT message, stage, max(checked.value)
    FROM stage JOIN checked ON checked.process = stage.process AND checked.record <= stage.record
    GROUP BY message, stage
    UNION
    SELECT edge.message, edge.stage, max(past.value)
    FROM past JOIN edge ON from_message = past.message AND from_stage = past.stage
    LEFT JOIN recurring.past AS known ON known.message = edge.message AND known.stage = edge.stage
    GROUP BY edge.message, edge.stage, known.value
    HAVING known.value IS NULL OR max(past.value) > known.value
)
FROM past;

CREATE OR REPLACE TEMP VIEW violation AS
WITH seen AS (
    SELECT process, record, at_ns, value, true AS is_report FROM checked
    UNION ALL
    SELECT process, record, NULL, value, false FROM tells JOIN greatest_past USING (message, stage)
)
SELECT run, at_ns, process, NULL AS message, format('no larger timestamp ({}) than what happened before ({}) at', value, past) AS what
FROM (
    SELECT *, max(value) OVER (PARTITION BY process ORDER BY record ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS past
    FROM seen
)
JOIN process USING (process)
WHERE is_report AND past >= value;
