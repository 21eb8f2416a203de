-- Critical sections. A submission is a request, the delivery of it at its own member the grant.

-- The end of its view ends the section of an excluded process: when the first member goes from a view with the process
-- to one without it, whose number is greater than that of the last one of the process.
CREATE OR REPLACE TEMP TABLE exclusion AS
WITH last_view AS (SELECT process, arg_max(view, nth) AS view FROM installation GROUP BY process),
change AS (
    SELECT process, run, at_ns, view, size, names, lag(names) OVER (PARTITION BY process ORDER BY nth) AS names_before
    FROM installation JOIN (
        SELECT process, nth, list((member, incarnation)) AS names FROM named GROUP BY process, nth
    ) USING (process, nth)
)
SELECT process.process, min(change.at_ns) AS at_ns
FROM process JOIN last_view USING (process)
JOIN change ON change.run = process.run AND change.view > last_view.view AND len(names) >= size
    AND list_contains(names_before, (process.member, process.incarnation))
    AND NOT list_contains(names, (process.member, process.incarnation))
GROUP BY process.process;

-- Sections end with the next report LEFT of the process; without one with its crash, that is its last record.
-- A process with a report HOLDS before its first grant is inside from then on; one with a report LEFT before it was
-- inside from its first record on (`message` NULL).
-- `end_ns` NULL: the process stopped in order and never left. `fence` NULL: none was reported by the record after.
CREATE OR REPLACE TEMP TABLE every_section AS
WITH own_delivery AS (
    SELECT process, record, message, at_ns FROM step WHERE event = 'deliver' AND process = sender
),
granted AS (
    FROM own_delivery
    UNION ALL
    SELECT record.process, record.record, NULL, record.at_ns
    FROM record JOIN (
        SELECT process, min(record) AS record, arg_min(code, record) AS code
        FROM report WHERE code IN ('left', 'holds') GROUP BY process
    ) AS sign USING (process)
    JOIN (SELECT process, min(record) AS record FROM record GROUP BY process) AS begun USING (process)
    LEFT JOIN (SELECT process, min(record) AS record FROM own_delivery GROUP BY process) AS entry USING (process)
    WHERE coalesce(entry.record > sign.record, true)
      AND record.record = if(sign.code = 'holds', sign.record, begun.record)
),
last_record AS (
    SELECT process, arg_max(at_ns, record) AS at_ns, bool_or(event = 'stop') AS is_stopped FROM record GROUP BY process
)
SELECT granted.process, process.run, granted.record, message, granted.at_ns,
    least(coalesce(departure.at_ns, if(is_stopped, NULL, last_record.at_ns)), exclusion.at_ns) AS end_ns,
    exclusion.at_ns AS excluded_ns, coalesce(granted.at_ns >= exclusion.at_ns, false) AS is_late, unsigned(fence.value) AS fence
FROM granted JOIN process USING (process) JOIN last_record ON last_record.process = granted.process
ASOF LEFT JOIN (FROM report WHERE code = 'left') AS departure
    ON departure.process = granted.process AND departure.record > granted.record
LEFT JOIN exclusion ON exclusion.process = granted.process
LEFT JOIN (FROM report WHERE code = 'fence') AS fence
    ON fence.process = granted.process AND fence.record = granted.record + 1;

-- A grant after the exclusion does not count.
CREATE OR REPLACE TEMP TABLE section AS FROM every_section WHERE NOT is_late;
