-- How far the records can be trusted. Each excuse stands with its run.

CREATE OR REPLACE TEMP TABLE process_name AS
SELECT process, coalesce(name, 'member ' || member) || if(is_joiner, ' (incarnation ' || incarnation || ')', '') AS name
FROM process LEFT JOIN member USING (run, member);

-- Records that are missing: then nothing can be judged.
CREATE OR REPLACE TEMP TABLE missing AS
SELECT run, string_agg(DISTINCT reason, '; ' ORDER BY reason) AS reason FROM (
SELECT run, 'trace records of ' || name || ' are missing' AS reason
FROM (
    SELECT process FROM record GROUP BY process
    HAVING min(record) <> 1 OR max(record) <> count(*) OR count(DISTINCT record) <> count(*)
        OR arg_min(event, record) <> 'start'
        -- A message, a level or a view that cannot exist.
        OR bool_or(event IN ('deliver', 'undo') AND detail > 2)
        OR bool_or(event IN ('submit', 'deliver', 'undo') AND number NOT BETWEEN 1 AND 4294967295)
        OR bool_or(event IN ('view', 'minority', 'state') AND number NOT BETWEEN 0 AND 4294967295)
)
JOIN process USING (process) JOIN process_name USING (process)
UNION ALL
SELECT member.run, coalesce(name, 'member ' || member) || ' left no trace records'
FROM member ANTI JOIN process USING (run, member) WHERE member.is_expected
UNION ALL
SELECT run, 'the last trace records of ' || coalesce(name, 'member ' || member) || ' are missing'
FROM started JOIN member USING (run, member)
WHERE is_expected AND ended_in_order AND (run, member, started.incarnation) NOT IN (
    SELECT (run, member, incarnation) FROM process JOIN ending USING (process)
)
UNION ALL
SELECT run, coalesce(name, 'member ' || member) || ' (incarnation ' || incarnation || ') left no trace records'
FROM started JOIN member USING (run, member) ANTI JOIN process USING (run, member, incarnation)
WHERE is_expected AND NOT may_be_silent
UNION ALL
SELECT run, 'there are trace records of ' || name || ', never started'
FROM process JOIN process_name USING (process) ANTI JOIN started USING (run, member, incarnation)
WHERE run IN (SELECT run FROM started)
UNION ALL
SELECT run, 'the collector lost frames, which may be the last trace records of ' || name
FROM lost_frames JOIN process USING (run) ANTI JOIN ending USING (process) JOIN process_name USING (process)
)
GROUP BY run;

-- What should happen eventually may not have happened yet.
CREATE OR REPLACE TEMP TABLE undrained AS
SELECT run, string_agg(DISTINCT reason, '; ' ORDER BY reason) AS reason FROM (
SELECT run, 'the run ended before ' || name || ' had become quiet' AS reason
FROM ending JOIN process USING (process) JOIN process_name USING (process)
WHERE event = 'stop' AND detail = 0
UNION ALL
SELECT run, 'the run ended while ' || name || ' had no quorum'
FROM (
    SELECT process FROM record WHERE event = 'minority' GROUP BY process HAVING arg_max(detail, record) = 1
)
JOIN ending USING (process) JOIN process USING (process) JOIN process_name USING (process)
WHERE event = 'stop'
UNION ALL
SELECT DISTINCT run, 'no member ran from start to end' FROM member ANTI JOIN full_member USING (run)
UNION ALL
SELECT run, 'the run did not drain' FROM drained WHERE at_ns IS NULL
UNION ALL
SELECT DISTINCT run, 'the network was still cut when the run drained'
FROM cut JOIN drained USING (run) WHERE coalesce(cut.healed_ns > drained.at_ns, true)
UNION ALL
SELECT run, 'a port or link still lost every frame when the run drained'
FROM impaired JOIN drained USING (run) WHERE from_ns <= drained.at_ns
GROUP BY run, element HAVING arg_max(loss_ratio, from_ns) >= 1
)
GROUP BY run;

-- Where messages are for objects, a member is no receiver.
CREATE OR REPLACE TEMP TABLE for_objects AS
SELECT DISTINCT run, 'messages are for objects here, not for members' AS reason
FROM report JOIN process USING (process) WHERE code = 'addressed';

-- Why a run cannot pass a property, though it may fail it. The files of the properties fill this.
CREATE OR REPLACE TEMP TABLE excuse (run INTEGER, property VARCHAR, reason VARCHAR);
