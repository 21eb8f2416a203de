-- From what a property looked at (`checked`) and found wrong (`violation`) to its verdict in each run. Missing evidence
-- outweighs all: an incomplete history shows violations that never were. Parameters: `property`: its name; `of_receivers`:
-- members must be what messages are for; `liveness`: it speaks of what happens eventually.
WITH counted AS (
    SELECT run, count(*) AS checked FROM checked GROUP BY run
),
violated AS (
    SELECT run, count(*) AS violations, arg_min({process: process, message: message, what: what}, at_ns) AS first
    FROM violation GROUP BY run
),
weighed AS (
    SELECT run, coalesce(checked, 0) AS checked, coalesce(violations, 0) AS violations, first,
        coalesce(
            missing.reason, if($of_receivers, for_objects.reason, NULL), if($liveness, undrained.reason, NULL)
        ) AS no_evidence,
        coalesce(excuse.reason, if(checked IS NULL, 'there was nothing to look at', NULL)) AS no_pass
    FROM (SELECT DISTINCT run FROM member)
    LEFT JOIN counted USING (run) LEFT JOIN violated USING (run)
    LEFT JOIN missing USING (run) LEFT JOIN for_objects USING (run) LEFT JOIN undrained USING (run)
    LEFT JOIN (FROM excuse WHERE property = $property) AS excuse USING (run)
)
SELECT weighed.run,
    CASE
        WHEN no_evidence IS NOT NULL THEN 'unknown'
        WHEN violations > 0 THEN 'fail'
        WHEN no_pass IS NOT NULL THEN 'unknown'
        ELSE 'pass'
    END AS verdict,
    checked, violations,
    CASE verdict WHEN 'unknown' THEN coalesce(no_evidence, no_pass) ELSE '' END AS reason,
    CASE verdict WHEN 'fail' THEN
        if(message.message IS NULL, '', coalesce(sender.name, 'member ' || message.origin) || ' #' || number || ': ')
        || first.what || ' ' || of_process.name
    ELSE '' END AS witness
FROM weighed
LEFT JOIN process_name AS of_process ON of_process.process = first.process
LEFT JOIN message ON message.message = first.message
LEFT JOIN process_name AS sender ON sender.process = message.sender;
