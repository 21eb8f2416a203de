-- Grant order (Lamport 1978): a request that happened before another is granted before it. A request that its core sent at
-- once (the next record after SUBMIT is a report SENT, code 0x15) has happened when it was; it is known wherever a member has
-- it in its past. A member that is given a message (GIVEN, code 0x16) has what its sender knew in its past. An own earlier
-- request is known, too. A request of a process that has crashed or is over, and that was not granted, does not matter.
-- Members without such reports are not checked.

CREATE OR REPLACE TEMP TABLE told AS
SELECT process, run, member, record, at_ns, detail = 21 AS is_sent, record.extra AS other, value,
    value >> 32 & 1 = 1 AS is_unicast
FROM record JOIN process USING (process) WHERE event = 'report' AND detail IN (21, 22);

-- Each message that was given: the last one of its name that its sender has sent, to all or to this member.
CREATE OR REPLACE TEMP TABLE core_message AS
SELECT sent.process, sent.record, given.process AS receiver, given.record AS given_record
FROM told AS given JOIN told AS sent
    ON sent.run = given.run AND sent.member = given.other AND sent.value = given.value
    AND (NOT given.is_unicast OR sent.other = given.member)
    AND (sent.at_ns, sent.process, sent.record) < (given.at_ns, given.process, given.record)
WHERE sent.is_sent AND NOT given.is_sent
QUALIFY row_number() OVER (
    PARTITION BY given.process, given.record ORDER BY sent.at_ns DESC, sent.process DESC, sent.record DESC
) = 1;

-- What is known at a record is told by all later messages: from when on a receiver knows it.
CREATE OR REPLACE TEMP TABLE tells AS
SELECT process, record, receiver, min(given_record) OVER (
    PARTITION BY process, receiver ORDER BY record RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
) AS given_record
FROM core_message;

CREATE OR REPLACE TEMP TABLE first_request AS
SELECT submission.message, submission.process, submission.record
FROM submission JOIN told ON told.process = submission.process AND told.record = submission.record + 1 AND is_sent;

CREATE OR REPLACE TEMP TABLE hop AS
WITH known_from AS (
    SELECT process, record FROM first_request UNION SELECT receiver, given_record FROM tells
),
way AS (
    SELECT process, record, receiver FROM known_from JOIN (SELECT DISTINCT process, receiver FROM tells) USING (process)
)
SELECT way.process, way.record, way.receiver, given_record
FROM way ASOF JOIN tells ON tells.process = way.process AND tells.receiver = way.receiver AND tells.record > way.record;

-- Where each request is known, and from which record on.
CREATE OR REPLACE TEMP TABLE knows AS
WITH RECURSIVE known(message, process, record) USING KEY (message, process) AS (
    FROM first_request
    UNION
    SELECT known.message, hop.receiver, min(given_record)
    FROM known JOIN hop ON hop.process = known.process AND hop.record = known.record
    LEFT JOIN recurring.known AS before ON before.message = known.message AND before.process = hop.receiver
    GROUP BY known.message, hop.receiver, before.record
    HAVING before.record IS NULL OR min(given_record) < before.record
)
FROM known;

-- Of the grants of one request, the first one counts.
CREATE OR REPLACE TEMP VIEW granted AS
SELECT run, process, message, record, at_ns, rank() OVER (PARTITION BY run ORDER BY at_ns, process, record) AS turn
FROM section QUALIFY row_number() OVER (PARTITION BY message ORDER BY at_ns, process, record) = 1;

CREATE OR REPLACE TEMP VIEW checked AS
SELECT granted.run, message, process, submission.record AS asked_record, granted.at_ns, turn
FROM granted JOIN submission USING (message, process) WHERE process IN (SELECT process FROM told);

CREATE OR REPLACE TEMP VIEW violation AS
WITH earlier AS (
    SELECT checked.message AS later_message, knows.message
    FROM checked JOIN knows ON knows.process = checked.process AND knows.record < asked_record
    UNION
    SELECT checked.message, own.message
    FROM checked JOIN submission AS own ON own.process = checked.process AND own.record < asked_record
)
SELECT checked.run, checked.at_ns, checked.process, checked.message, 'granted before an earlier request to' AS what
FROM earlier JOIN checked ON checked.message = later_message
JOIN submission AS first ON first.message = earlier.message
LEFT JOIN granted ON granted.message = earlier.message
LEFT JOIN (SELECT DISTINCT process FROM record WHERE event = 'stop') AS stopped ON stopped.process = first.process
WHERE granted.turn > checked.turn OR granted.turn IS NULL AND stopped.process IS NOT NULL;
