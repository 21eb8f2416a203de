-- What happened, in the words of the trace format (docs/trace.md). A process is one incarnation of one member. Processes
-- and messages have numbers of their own, which no two runs share, so only what is compared across processes names a run.

CREATE OR REPLACE TEMP TABLE process AS
SELECT
    row_number() OVER (ORDER BY run, member, member_incarnation) AS process,
    run, member, member_incarnation AS incarnation, member_incarnation <> 1 AS is_joiner
FROM (SELECT DISTINCT run, member, member_incarnation FROM trace);

CREATE OR REPLACE TEMP TABLE record AS
SELECT
    process, record,
    CASE event
        WHEN 1 THEN 'start' WHEN 2 THEN 'submit' WHEN 3 THEN 'send' WHEN 4 THEN 'deliver' WHEN 5 THEN 'undo'
        WHEN 8 THEN 'stop' WHEN 10 THEN 'report' WHEN 12 THEN 'receive' WHEN 13 THEN 'ended' WHEN 15 THEN 'view'
        WHEN 16 THEN 'minority' WHEN 17 THEN 'state' ELSE 'other'
    END AS event,
    detail, trace.origin, trace.incarnation, extra, number, at_ns, value, size_bytes, checksum
FROM trace JOIN process ON (trace.run, trace.member, trace.member_incarnation)
    = (process.run, process.member, process.incarnation);

CREATE OR REPLACE TEMP TABLE report AS
SELECT
    process, record, extra, at_ns, value,
    CASE detail
        WHEN 232 THEN 'aborted' WHEN 233 THEN 'unreachable' WHEN 234 THEN 'missed' WHEN 235 THEN 'refused'
        WHEN 240 THEN 'addressed' WHEN 241 THEN 'left' WHEN 242 THEN 'clock' WHEN 243 THEN 'timestamp'
        WHEN 253 THEN 'state' WHEN 255 THEN 'called' WHEN 98 THEN 'fence' WHEN 100 THEN 'holds' ELSE 'other'
    END AS code
FROM record WHERE event = 'report';

-- A number of 64 bits as on the wire, which the table holds with a sign.
CREATE OR REPLACE TEMP MACRO unsigned(signed) AS signed::HUGEINT + if(signed < 0, 18446744073709551616, 0);

-- The first STOP or ENDED of a process. A process without one has crashed.
CREATE OR REPLACE TEMP TABLE ending AS
SELECT process, arg_min(event, record) AS event, arg_min(detail, record) AS detail
FROM record WHERE event IN ('stop', 'ended') GROUP BY process;

-- A full member ran from start to end: its one and only incarnation is the first, and ends with STOP.
CREATE OR REPLACE TEMP TABLE full_member AS
SELECT process, process.run, process.member
FROM process JOIN ending USING (process)
WHERE ending.event = 'stop' AND NOT is_joiner
  AND NOT EXISTS (
    FROM process AS other
    WHERE (other.run, other.member) = (process.run, process.member) AND other.process <> process.process
  );

-- A message is named by the host of its origin. `sender`: NULL where the origin left no records under that incarnation.
CREATE OR REPLACE TEMP TABLE message AS
SELECT
    row_number() OVER (ORDER BY named.run, named.origin, named.incarnation, number) AS message,
    named.run, named.origin, named.incarnation, number, process AS sender
FROM (
    SELECT DISTINCT run, origin, record.incarnation, number FROM record JOIN process USING (process)
    WHERE event IN ('submit', 'deliver', 'undo')
) AS named
LEFT JOIN process ON (named.run, named.origin, named.incarnation) = (process.run, process.member, process.incarnation);

-- Records that speak of a message. `object`: which of the member's objects asked or got it; 0: the member itself.
CREATE OR REPLACE TEMP TABLE step AS
SELECT process, record, event, detail AS level, message, sender, extra AS object, at_ns, size_bytes, checksum
FROM record JOIN process USING (process)
JOIN message ON (process.run, record.origin, record.incarnation, record.number)
    = (message.run, message.origin, message.incarnation, message.number)
WHERE event IN ('submit', 'deliver', 'undo');

-- The first record that its own origin has of each message.
CREATE OR REPLACE TEMP TABLE submission AS
SELECT message, process, min(record) AS record, arg_min(at_ns, record) AS at_ns, arg_min(object, record) AS object,
    arg_min(size_bytes, record) AS size_bytes, arg_min(checksum, record) AS checksum
FROM step WHERE event = 'submit' AND process = sender GROUP BY message, process;
