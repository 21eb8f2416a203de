-- Calls between objects (paper 004).

-- Whom a call is for stand in the ADDRESSED reports behind the CALLED that names it. One report has 48 objects of one
-- member as bits 0 to 47, which block of 48 in bits 48 to 59; bit 60: to one object past the order; bit 62: atomic; bit 63
-- (the sign): its order does not matter. Where a crash came right after such a report, others may be lost: all of the call
-- count as lost.
CREATE OR REPLACE TEMP TABLE addressed AS
WITH named AS (
    SELECT process, record, code, extra, value,
        last_value(CASE code WHEN 'called' THEN value END IGNORE NULLS) OVER (PARTITION BY process ORDER BY record) AS called
    FROM report WHERE code IN ('called', 'addressed')
),
cut AS (
    SELECT process, called
    FROM named JOIN (SELECT process, max(record) AS record FROM record GROUP BY process) AS latest USING (process, record)
    ANTI JOIN ending USING (process)
    WHERE code = 'addressed'
)
SELECT message, extra AS member, value AS mask
FROM named ANTI JOIN cut USING (process, called)
JOIN message ON message.sender = named.process AND message.number = called
WHERE code = 'addressed';

CREATE OR REPLACE TEMP TABLE call AS
SELECT submission.message, run, submission.process, submission.object, number, submission.record, submission.at_ns,
    coalesce(is_known, false) AS is_known, coalesce(is_atomic, false) AS is_atomic,
    coalesce(is_known AND NOT is_loose, false) AS is_ordered, coalesce(is_loose, false) AS is_loose,
    coalesce(ending.event = 'stop', false) AS caller_lives
FROM submission JOIN message USING (message)
LEFT JOIN (
    SELECT message, true AS is_known, bool_or(mask & (1::BIGINT << 62) <> 0) AS is_atomic,
        bool_or(mask < 0 OR mask & (1::BIGINT << 60) <> 0) AS is_loose
    FROM addressed GROUP BY message
) USING (message)
LEFT JOIN ending ON ending.process = submission.process;

CREATE OR REPLACE TEMP TABLE is_for AS
SELECT DISTINCT message, member, 48 * ((mask >> 48) & 4095) + 1 + bit AS object
FROM addressed CROSS JOIN range(48) AS bits(bit)
WHERE (mask >> bit) & 1 = 1;

-- What each object got, in the order of the records, repeats apart.
CREATE OR REPLACE TEMP TABLE got_any AS
SELECT process, object, message, record, at_ns, size_bytes, checksum,
    row_number() OVER (PARTITION BY process, object, message ORDER BY record) AS nth
FROM step WHERE event = 'deliver' AND object <> 0;

CREATE OR REPLACE TEMP TABLE got AS
SELECT process, object, message, record, at_ns,
    row_number() OVER (PARTITION BY process, object ORDER BY record) AS position
FROM got_any WHERE nth = 1;

CREATE OR REPLACE TEMP VIEW got_ordered AS
SELECT got.*, run, call.process AS caller, call.object AS caller_object, number
FROM got JOIN call USING (message) WHERE is_ordered;

-- What callers reported of their own calls.
CREATE OR REPLACE TEMP TABLE told AS
SELECT call.message, code, extra AS member
FROM report JOIN call ON call.process = report.process AND call.number = report.value
WHERE code IN ('aborted', 'unreachable', 'refused');

-- The objects at full members that a call is for; whether they got it, and if not, whether that is excused: their machine
-- says that it MISSED the call, or its caller says UNREACHABLE (0xFFFF: all machines) or REFUSED.
CREATE OR REPLACE TEMP TABLE owed AS
SELECT call.message, full_member.process, is_for.object, got.message IS NOT NULL AS has_got,
    EXISTS (
        FROM told WHERE told.message = call.message
          AND (code = 'refused' OR code = 'unreachable' AND told.member IN (full_member.member, 65535))
    )
    OR EXISTS (
        FROM report JOIN message ON message.message = call.message
        WHERE report.process = full_member.process AND code = 'missed'
          AND (value >> 48) & 65535 = message.origin AND (value >> 32) & 65535 = message.incarnation
          AND value & 4294967295 = message.number
    ) AS is_excused
FROM call JOIN is_for USING (message)
JOIN full_member ON (full_member.run, full_member.member) = (call.run, is_for.member)
LEFT JOIN got ON got.message = call.message AND got.process = full_member.process AND got.object = is_for.object;
