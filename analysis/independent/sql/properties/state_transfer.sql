-- State transfer: a joiner delivers nothing before it has the state. If it gets the state in n, it delivers nothing that a
-- process that came to n from another view had delivered before n. If it goes on, it delivers the same messages in n as
-- those that came to n from another view, have the state all through n and go on to the same view, and as other joiners that
-- get the state in n and go on to it. A founder that takes a state is held to this like a joiner.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT DISTINCT run, process FROM installation;

CREATE OR REPLACE TEMP VIEW violation AS
WITH joiner AS (
    SELECT checked.process, checked.run, state_taken.record, view
    FROM checked LEFT JOIN founder USING (process) LEFT JOIN state_taken USING (process)
    WHERE founder.process IS NULL OR state_taken.process IS NOT NULL
),
elder AS (
    SELECT DISTINCT joiner.process AS joiner, joiner.view, transition.process
    FROM joiner JOIN transition ON transition.run = joiner.run AND new_view = joiner.view AND transition.process <> joiner.process
),
-- Those that have the state all through the view of the joiner or get it there, too, and go on with it.
companion AS (
    SELECT elder.*
    FROM elder JOIN stateful ON stateful.process = elder.process AND from_view <= view
    JOIN transition AS of_joiner ON of_joiner.process = elder.joiner AND of_joiner.old_view = view
    JOIN transition AS of_elder ON of_elder.process = elder.process
        AND (of_elder.old_view, of_elder.new_view) = (of_joiner.old_view, of_joiner.new_view)
    UNION
    SELECT joiner.process, joiner.view, other.process
    FROM joiner JOIN joiner AS other USING (run, view)
    JOIN transition AS of_joiner ON of_joiner.process = joiner.process AND of_joiner.old_view = view
    JOIN transition AS of_other ON of_other.process = other.process
        AND (of_other.old_view, of_other.new_view) = (of_joiner.old_view, of_joiner.new_view)
    WHERE other.process <> joiner.process
)
SELECT joiner.run, at_ns, process, message, 'delivered before it has the state by' AS what
FROM joiner JOIN in_view USING (process)
WHERE joiner.record IS NULL OR in_view.record < joiner.record
UNION ALL
SELECT own.run, own.at_ns, own.process, own.message, 'delivered though it was in the state by'
FROM joiner JOIN in_view AS own USING (process)
WHERE own.record >= joiner.record AND EXISTS (
    FROM elder JOIN in_view AS known ON known.process = elder.process AND known.view < elder.view
    WHERE elder.joiner = own.process AND known.message = own.message
)
UNION ALL
SELECT own.run, own.at_ns, own.process, own.message, 'not delivered by all that are in its first view, but by'
FROM companion JOIN in_view AS own ON (own.process, own.view) = (companion.joiner, companion.view)
ANTI JOIN in_view AS other ON other.process = companion.process AND other.message = own.message AND other.view = own.view
UNION ALL
SELECT other.run, other.at_ns, companion.joiner, other.message, 'delivered by others in the view of the joiner, but not by'
FROM companion JOIN in_view AS other ON (other.process, other.view) = (companion.process, companion.view)
ANTI JOIN in_view AS own ON own.process = companion.joiner AND own.message = other.message AND own.view = other.view;
