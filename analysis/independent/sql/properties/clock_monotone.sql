-- Clock monotone: what a synchronised clock shows (reports CLOCK) never decreases in one process.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT run, process, at_ns, unsigned(report.value) AS value,
    lag(unsigned(report.value)) OVER (PARTITION BY process ORDER BY record) AS value_before
FROM report JOIN process USING (process) WHERE code = 'clock';

CREATE OR REPLACE TEMP VIEW violation AS
SELECT run, at_ns, process, NULL AS message, format('a clock is set backwards from {} to {} at', value_before, value) AS what
FROM checked WHERE value < value_before;
