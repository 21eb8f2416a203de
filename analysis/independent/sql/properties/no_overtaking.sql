-- No overtaking: of the calls of one asking object, loose or not, every object gets a later one only after the earlier ones
-- that it gets at all.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT run, got.process, got.object, message, got.at_ns, number,
    max(number) OVER (
        PARTITION BY got.process, got.object, call.process, call.object
        ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS number_before
FROM got JOIN call USING (message);

CREATE OR REPLACE TEMP VIEW violation AS
SELECT run, at_ns, process, message, format('overtaken by a later call of its sender at object {} of', object) AS what
FROM checked WHERE number_before > number;
