-- Causal order: what a member submitted or delivered before it submits m, and what went before that in turn, is delivered
-- before m everywhere. Whoever delivers the direct causes of every message first delivers all that went before first: a
-- chain of causes has a first link that is broken. A joiner is asked for direct causes only, and not for messages of an
-- origin that it delivers nothing of, or with an earlier number than the first that it delivers of it.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT process.run, delivery.* FROM delivery JOIN process USING (process);

CREATE OR REPLACE TEMP VIEW violation AS
WITH joiner_begins AS (
    SELECT process, origin, message.incarnation, min(number) AS number
    FROM delivery JOIN process USING (process) JOIN message USING (message)
    WHERE is_joiner GROUP BY process, origin, message.incarnation
),
late AS (
    SELECT effect.run, effect.at_ns, effect.process, effect.message, direct_cause.cause
    FROM checked AS effect JOIN direct_cause USING (message)
    LEFT JOIN delivery AS cause ON cause.process = effect.process AND cause.message = direct_cause.cause
    WHERE cause.position IS NULL OR cause.position >= effect.position
)
SELECT late.run, at_ns, late.process, late.message, 'delivered before its cause by' AS what
FROM late JOIN process ON process.process = late.process JOIN message ON message.message = late.cause
LEFT JOIN joiner_begins ON joiner_begins.process = late.process
    AND (joiner_begins.origin, joiner_begins.incarnation) = (message.origin, message.incarnation)
WHERE NOT is_joiner OR message.number >= joiner_begins.number;
