-- FIFO: of one incarnation of an origin, everybody delivers 1, 2, 3 … without a gap. A joiner counts from the first number
-- that it delivers of each origin.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT delivery.*, process.run, is_joiner, number,
    lag(number) OVER (
        PARTITION BY delivery.process, message.origin, message.incarnation ORDER BY position
    ) AS number_before
FROM delivery JOIN message USING (message) JOIN process ON process.process = delivery.process;

CREATE OR REPLACE TEMP VIEW violation AS
SELECT run, at_ns, process, message, 'delivered out of its origin''s order by' AS what
FROM checked
WHERE number <> coalesce(number_before + 1, if(is_joiner, number, 1));
