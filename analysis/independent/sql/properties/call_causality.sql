-- Call causality: an ordered call has in its past the ordered calls that its object submitted or got before it, and their
-- pasts; and of each loose call that its object got, what the sender of that had got, but not what it had only submitted.
-- An object that gets a call and one of its past gets that of the past first.
--
-- An object's earlier ordered calls are in the past of its later ones. So of each asking object a past has all ordered calls
-- up to a number, and is one number for each of them.

CREATE OR REPLACE TEMP VIEW checked AS
FROM got_ordered;

-- What a call knows by what its object had got before it.
CREATE OR REPLACE TEMP TABLE knows_call AS
WITH RECURSIVE asked AS (
    SELECT message, process, object, record, at_ns,
        lag(message) OVER own AS message_before, lag(record) OVER own AS record_before
    FROM call WHERE is_known WINDOW own AS (PARTITION BY process, object ORDER BY record)
),
taken AS (
    SELECT asked.message, call.message AS from_message, call.process, call.object, call.number, call.is_ordered
    FROM asked JOIN got ON (got.process, got.object) = (asked.process, asked.object)
        AND got.record < asked.record AND got.record > coalesce(record_before, 0)
    JOIN call ON call.message = got.message AND call.is_known AND call.at_ns < got.at_ns
),
source AS (
    SELECT message, from_message FROM taken
    UNION
    SELECT message, message_before FROM asked WHERE message_before IS NOT NULL
),
known(message, process, object, number) USING KEY (message, process, object) AS (
    SELECT message, process, object, max(number) FROM taken WHERE is_ordered GROUP BY message, process, object
    UNION
    SELECT source.message, known.process, known.object, max(known.number)
    FROM known JOIN source ON source.from_message = known.message
    LEFT JOIN recurring.known AS before
        ON before.message = source.message AND before.process = known.process AND before.object = known.object
    GROUP BY source.message, known.process, known.object, before.number
    HAVING before.number IS NULL OR max(known.number) > before.number
)
FROM known;

-- The past of each ordered call: the greatest number of each asking object.
CREATE OR REPLACE TEMP TABLE past AS
SELECT message, process, object, max(number) AS number FROM (
    SELECT knows_call.* FROM knows_call JOIN call USING (message) WHERE is_ordered
    UNION ALL
    SELECT message, process, object, lag(number) OVER (PARTITION BY process, object ORDER BY record) FROM call WHERE is_ordered
)
WHERE number IS NOT NULL GROUP BY message, process, object;

CREATE OR REPLACE TEMP VIEW violation AS
WITH expected AS (
    SELECT got_ordered.process, got_ordered.object, position, past.process AS caller, past.object AS caller_object,
        max(past.number) OVER (
            PARTITION BY got_ordered.process, got_ordered.object, past.process, past.object ORDER BY position
        ) AS number
    FROM got_ordered JOIN past USING (message)
)
SELECT run, at_ns, late.process, message, format('got after a call that it came before by object {} of', late.object) AS what
FROM got_ordered AS late ASOF JOIN expected
    ON expected.process = late.process AND expected.object = late.object
    AND expected.caller = late.caller AND expected.caller_object = late.caller_object
    AND expected.position < late.position
WHERE late.number <= expected.number;
