-- Views, and what each process delivered in which.

-- Records VIEW that follow each other and name one view are a stretch. An installation takes as many of its records as
-- its first one says that the view has members; what is left of the stretch is another installation.
CREATE OR REPLACE TEMP TABLE view_record AS
SELECT *, row_number() OVER (PARTITION BY process, stretch ORDER BY record) AS place FROM (
    SELECT *, sum(is_new::INT) OVER (PARTITION BY process ORDER BY record) AS stretch FROM (
        SELECT process, record, at_ns, number AS view, detail AS reason, value AS size, origin AS member, incarnation, extra,
            (lag(record) OVER of_process, lag(number) OVER of_process) IS DISTINCT FROM (record - 1, number) AS is_new
        FROM record WHERE event = 'view' WINDOW of_process AS (PARTITION BY process ORDER BY record)
    )
);

CREATE OR REPLACE TEMP TABLE installation AS
WITH RECURSIVE beginning AS (
    FROM view_record WHERE place = 1
    UNION ALL
    SELECT following.* FROM beginning JOIN view_record AS following
        ON following.process = beginning.process AND following.stretch = beginning.stretch
        AND following.place = beginning.place + greatest(beginning.size, 1)
)
SELECT process, run, record, at_ns, view, reason, size,
    row_number() OVER of_process AS nth,
    lag(view) OVER of_process AS view_before
FROM beginning JOIN process USING (process)
WINDOW of_process AS (PARTITION BY process ORDER BY record);

-- The members that each installation names, in order of rank.
CREATE OR REPLACE TEMP TABLE named AS
SELECT installation.process, nth, named.record, member, incarnation, extra,
    row_number() OVER (PARTITION BY installation.process, nth ORDER BY named.record) AS rank
FROM view_record AS named ASOF JOIN installation
    ON named.process = installation.process AND named.record >= installation.record;

-- From which view to which one a process goes.
CREATE OR REPLACE TEMP TABLE transition AS
SELECT DISTINCT process, run, view_before AS old_view, view AS new_view FROM installation WHERE nth > 1;

-- A survivor of a view installs it and later one of a greater number.
CREATE OR REPLACE TEMP TABLE survivor AS
SELECT DISTINCT process, run, view FROM (
    SELECT process, run, view, max(view) OVER (PARTITION BY process) AS last_view FROM installation
)
WHERE view < last_view;

-- A founder's first view has the reason FIRST (1). `view`: in which it got the state by a record STATE; before: 0.
CREATE OR REPLACE TEMP TABLE founder AS
SELECT process FROM installation WHERE nth = 1 AND reason = 1;

CREATE OR REPLACE TEMP TABLE state_taken AS
SELECT taken.process, process.run, taken.record, coalesce(installation.view, 0) AS view
FROM (SELECT process, min(record) AS record FROM record WHERE event = 'state' GROUP BY process) AS taken
JOIN process USING (process)
ASOF LEFT JOIN installation ON taken.process = installation.process AND taken.record >= installation.record;

-- It has the state all through view n when it has it before it installs n, a founder always: from which view on.
CREATE OR REPLACE TEMP TABLE stateful AS
SELECT process, min(from_view) AS from_view FROM (
    SELECT process, 0 AS from_view FROM founder UNION ALL SELECT process, view + 1 FROM state_taken
)
GROUP BY process;

-- Present at the end are, of the processes that end with STOP, those whose last installation has the greatest number and
-- that have the state.
CREATE OR REPLACE TEMP TABLE present AS
WITH stopped AS (
    SELECT process, run, max(nth) AS nth, arg_max(view, nth) AS view
    FROM installation JOIN ending USING (process) WHERE event = 'stop' GROUP BY process, run
)
SELECT process, run, nth FROM stopped
WHERE (run, view) IN (SELECT (run, max(view)) FROM stopped GROUP BY run) AND process IN (SELECT process FROM stateful);

-- Optimistic deliveries that were never taken back, of messages that the process does not deliver for good, where that is
-- judged: at full members and at processes that are present at the end.
CREATE OR REPLACE TEMP TABLE left_standing AS
SELECT run, process, message, standing.at_ns
FROM standing JOIN process USING (process) JOIN judged_level USING (run) ANTI JOIN delivery USING (process, message)
WHERE standing.level = 0 AND judged_level.level > 0
  AND process IN (SELECT process FROM full_member UNION SELECT process FROM present);

-- First deliveries with their view (0: before the first one) and their place among those of the process in that view.
CREATE OR REPLACE TEMP TABLE in_view AS
SELECT *, row_number() OVER (PARTITION BY process, view ORDER BY position) AS place FROM (
    SELECT delivery.process, process.run, message, position, delivery.record, delivery.at_ns,
        coalesce(view, 0) AS view, nth
    FROM delivery JOIN process USING (process) JOIN run ON process.run = run.run AND has_views
    ASOF LEFT JOIN installation ON delivery.process = installation.process AND delivery.record >= installation.record
);

-- Deliveries after the last installation, by processes that are present at the end; and for each such process the messages
-- that another one delivers so and it does not.
CREATE OR REPLACE TEMP TABLE at_the_end AS
SELECT run, process, message, at_ns FROM in_view JOIN present USING (run, process, nth);

CREATE OR REPLACE TEMP VIEW lacking_at_the_end AS
SELECT run, process, message, at_ns
FROM (SELECT run, message, min(at_ns) AS at_ns FROM at_the_end GROUP BY run, message) JOIN present USING (run)
ANTI JOIN at_the_end USING (process, message);

-- Void is a delivery below level FINAL (2) in a view that its process does not survive though others do, of a message that
-- no survivor of the view delivers there or before.
CREATE OR REPLACE TEMP TABLE void AS
WITH outlived AS (
    SELECT process, run, view, message FROM in_view JOIN judged_level USING (run)
    WHERE level < 2
      AND (run, view) IN (SELECT (run, view) FROM survivor)
      AND (process, view) NOT IN (SELECT (process, view) FROM survivor)
)
SELECT process, message FROM outlived
EXCEPT
SELECT outlived.process, outlived.message
FROM outlived JOIN survivor USING (run, view)
JOIN in_view ON in_view.process = survivor.process AND in_view.message = outlived.message
    AND in_view.view <= outlived.view;

CREATE OR REPLACE TEMP VIEW for_good AS
FROM in_view ANTI JOIN void USING (process, message);
