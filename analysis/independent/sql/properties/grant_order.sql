-- Grant order (Lamport 1978): a request that happened before another is granted before it. A request happens when its core
-- takes it (report TAKEN, code 0x17), and is in the past of its member from then on. A message that a core sends (SENT, 0x15)
-- carries its past to each core that is given it (GIVEN, 0x16). A request of a process that has crashed or is over, and that
-- was not granted, does not matter.

CREATE OR REPLACE TEMP TABLE told AS
SELECT process, run, member, record, at_ns, detail AS code, record.extra AS other, value, value >> 32 & 1 = 1 AS is_unicast
FROM record JOIN process USING (process) WHERE event = 'report' AND detail IN (21, 22, 23);

-- Each message that was given: the last one of its name that its sender has sent, to all or to this member.
CREATE OR REPLACE TEMP TABLE core_message AS
SELECT sent.process, sent.record, given.process AS receiver, given.record AS given_record
FROM told AS given JOIN told AS sent
    ON sent.run = given.run AND sent.member = given.other AND sent.value = given.value
    AND (NOT given.is_unicast OR sent.other = given.member)
    AND (sent.at_ns, sent.process, sent.record) < (given.at_ns, given.process, given.record)
WHERE sent.code = 21 AND given.code = 22
QUALIFY row_number() OVER (
    PARTITION BY given.process, given.record ORDER BY sent.at_ns DESC, sent.process DESC, sent.record DESC
) = 1;

-- What is known at a record is told by all later messages: from when on a receiver knows it.
CREATE OR REPLACE TEMP TABLE tells AS
SELECT process, record, receiver, min(given_record) OVER (
    PARTITION BY process, receiver ORDER BY record RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
) AS given_record
FROM core_message;

CREATE OR REPLACE TEMP TABLE request AS
SELECT submission.message, told.process, min(told.record) AS record
FROM told JOIN message ON sender = told.process AND message.number = told.value JOIN submission USING (message)
WHERE code = 23 GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE hop AS
WITH known_from AS (
    SELECT process, record FROM request UNION SELECT receiver, given_record FROM tells
),
way AS (
    SELECT process, record, receiver FROM known_from JOIN (SELECT DISTINCT process, receiver FROM tells) USING (process)
)
SELECT way.process, way.record, way.receiver, given_record
FROM way ASOF JOIN tells ON tells.process = way.process AND tells.receiver = way.receiver AND tells.record > way.record;

-- Where each request is known, and from which record on.
CREATE OR REPLACE TEMP TABLE knows AS
WITH RECURSIVE known(message, process, record) USING KEY (message, process) AS (
    FROM request
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
SELECT granted.run, message, process, request.record AS asked_record, granted.at_ns, turn
FROM granted JOIN request USING (message, process);

-- Without the reports nobody knows the order of the requests: where several members took requests and nobody was given a
-- message, or where what was given was not sent, and its sender did not crash.
INSERT INTO excuse
SELECT run, 'grant_order', min(reason) FROM (
    SELECT run, 'several members took requests, and nobody was given a message' AS reason
    FROM told GROUP BY run
    HAVING count(DISTINCT member) FILTER (code = 23) > 1 AND count(*) FILTER (code = 22) = 0
    UNION ALL
    SELECT run, 'a message was given that was not sent'
    FROM told WHERE code = 22
      AND (process, record) NOT IN (SELECT (receiver, given_record) FROM core_message)
      AND (run, other) NOT IN (SELECT (run, member) FROM process ANTI JOIN ending USING (process))
)
GROUP BY run;

CREATE OR REPLACE TEMP VIEW violation AS
WITH earlier AS (
    SELECT checked.message AS later_message, knows.message
    FROM checked JOIN knows ON knows.process = checked.process AND knows.record < asked_record
)
SELECT checked.run, checked.at_ns, checked.process, checked.message, 'granted before an earlier request to' AS what
FROM earlier JOIN checked ON checked.message = later_message
JOIN submission AS first ON first.message = earlier.message
LEFT JOIN granted ON granted.message = earlier.message
LEFT JOIN (SELECT DISTINCT process FROM record WHERE event = 'stop') AS stopped ON stopped.process = first.process
WHERE granted.turn > checked.turn OR granted.turn IS NULL AND stopped.process IS NOT NULL;
