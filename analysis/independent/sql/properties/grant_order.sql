-- Grant order (Lamport 1978): a request that happened before another is granted before it. A request that was transmitted
-- at once (the next record after SUBMIT is the SEND of a new message that carries something) has happened when it was; it
-- is known wherever a *told* member has it in its past. A member is told what p did up to SEND j when it has received
-- every carrying message of p up to j that it ever receives. A SEND while messages of p wait for flow control tells nothing
-- of what p knew. An own earlier request is known, too. A request of a process
-- that has crashed or is over, and that was not granted, does not matter.

-- The last report WAITING (code 0x15) before each SEND: 1 while messages of the process wait for flow control.
CREATE OR REPLACE TEMP VIEW waiting AS
SELECT process, record, value = 1 AS is_waiting FROM record WHERE event = 'report' AND detail = 21;

-- SENDs, and whether each is of something new that a core above may have said: kinds 0x07 to 0x0F (the group layer), 0x11,
-- 0x12 and 0x14 (the reliable layer), 0x31 and 0x32 (CO) carry nothing of it; bit 1 of `extra` is a retransmission.
CREATE OR REPLACE TEMP TABLE sent AS
SELECT record.process, run, record.record, at_ns, record.value AS transmission, detail AS kind, record.origin, record.incarnation, number,
    detail NOT IN (7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 20, 49, 50) AS is_carrying,
    is_carrying AND extra & 2 = 0 AND (record.origin, record.incarnation) = (member, process.incarnation) AS is_new,
    coalesce(waiting.is_waiting, false) AS is_waiting
FROM record JOIN process USING (process)
ASOF LEFT JOIN waiting ON waiting.process = record.process AND waiting.record < record.record
WHERE event = 'send';

-- Receipts of carrying messages, by whom they are (`process`): the last SEND of the transmitter that began at or before the
-- number of the datagram tells.
CREATE OR REPLACE TEMP TABLE receipt AS
WITH datagram AS (
    SELECT taken.process AS receiver, taken.record, taken.at_ns, transmitter.process, taken.number
    FROM record AS taken JOIN process USING (process)
    JOIN process AS transmitter
        ON (transmitter.run, transmitter.member, transmitter.incarnation) = (process.run, taken.origin, taken.incarnation)
    WHERE taken.event = 'receive'
)
SELECT receiver, datagram.record, datagram.at_ns, origin.process, kind, sent.number
FROM datagram ASOF JOIN sent ON sent.process = datagram.process AND sent.transmission <= datagram.number
JOIN process AS origin ON (origin.run, origin.member, origin.incarnation) = (sent.run, sent.origin, sent.incarnation)
WHERE is_carrying;

-- From which record on a receiver is told what a process did up to a SEND: from the first receipt of the last of its messages
-- up to that one. A message that is sent while others wait, or that the process sends twice as a new one, tells nothing, and nothing tells before it is sent.
CREATE OR REPLACE TEMP TABLE is_told AS
WITH complete AS (
    SELECT sent.process, sent.record, sent.at_ns, is_waiting, receiver,
        max(first.record) OVER (PARTITION BY sent.process, receiver ORDER BY sent.record) AS told_record,
        count(*) OVER (PARTITION BY sent.process, receiver, kind, number) AS copies
    FROM sent JOIN (
        SELECT receiver, process, kind, number, min(record) AS record FROM receipt GROUP BY receiver, process, kind, number
    ) AS first USING (process, kind, number)
    WHERE is_new
)
SELECT complete.process, complete.record, complete.receiver, greatest(told_record, later.record) AS told_record
FROM complete ASOF JOIN receipt AS later
    ON later.process = complete.process AND later.receiver = complete.receiver AND later.at_ns > complete.at_ns
WHERE copies = 1 AND NOT is_waiting;

-- Where a request is known from some record on, it travels along: from there to each receiver's record at which that is told
-- of the first SEND after it.
CREATE OR REPLACE TEMP TABLE first_request AS
SELECT submission.message, submission.process, submission.record
FROM submission JOIN sent ON sent.process = submission.process AND sent.record = submission.record + 1 AND is_new;

CREATE OR REPLACE TEMP TABLE hop AS
WITH known_from AS (
    SELECT process, record FROM first_request UNION SELECT receiver, told_record FROM is_told
),
way AS (
    SELECT process, record, receiver FROM known_from JOIN (SELECT DISTINCT process, receiver FROM is_told) USING (process)
)
SELECT way.process, way.record, way.receiver, told_record
FROM way ASOF JOIN is_told ON is_told.process = way.process AND is_told.receiver = way.receiver
    AND is_told.record > way.record;

-- Where each request is known, and from which record on.
CREATE OR REPLACE TEMP TABLE knows AS
WITH RECURSIVE known(message, process, record) USING KEY (message, process) AS (
    FROM first_request
    UNION
    SELECT known.message, hop.receiver, min(told_record)
    FROM known JOIN hop ON hop.process = known.process AND hop.record = known.record
    LEFT JOIN recurring.known AS before ON before.message = known.message AND before.process = hop.receiver
    GROUP BY known.message, hop.receiver, before.record
    HAVING before.record IS NULL OR min(told_record) < before.record
)
FROM known;

-- Of the grants of one request, the first one counts.
CREATE OR REPLACE TEMP VIEW granted AS
SELECT run, process, message, record, at_ns, rank() OVER (PARTITION BY run ORDER BY at_ns, process, record) AS turn
FROM section QUALIFY row_number() OVER (PARTITION BY message ORDER BY at_ns, process, record) = 1;

CREATE OR REPLACE TEMP VIEW checked AS
SELECT granted.run, message, process, submission.record AS asked_record, granted.at_ns, turn
FROM granted JOIN submission USING (message, process);

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
