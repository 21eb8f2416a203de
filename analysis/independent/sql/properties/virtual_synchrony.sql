-- Virtual synchrony: processes that go from view n to the same next view and have the state all through n deliver the same
-- messages in n.

CREATE OR REPLACE TEMP VIEW checked AS
FROM installation;

CREATE OR REPLACE TEMP VIEW violation AS
WITH through AS (
    SELECT transition.* FROM transition JOIN stateful ON stateful.process = transition.process AND from_view <= old_view
),
together AS (
    SELECT run, old_view, new_view, message, min(in_view.at_ns) AS at_ns
    FROM through JOIN in_view USING (process, run) WHERE view = old_view
    GROUP BY run, old_view, new_view, message
)
SELECT run, at_ns, through.process, message, 'delivered by others that go on to the same view, but not there by' AS what
FROM together JOIN through USING (run, old_view, new_view)
ANTI JOIN in_view ON in_view.process = through.process AND in_view.message = together.message AND in_view.view = old_view;
