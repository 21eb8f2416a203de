-- Same view: all processes that deliver a message for good deliver it in the view of the same number.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT run, message, min(view) AS first_view, max(view) AS last_view, max(at_ns) AS at_ns, arg_max(process, at_ns) AS process
FROM for_good GROUP BY run, message;

CREATE OR REPLACE TEMP VIEW violation AS
SELECT run, at_ns, process, message, 'delivered in another view than elsewhere by' AS what
FROM checked WHERE first_view < last_view;
