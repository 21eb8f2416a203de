-- State: the k-th report STATE of one full member shows what the k-th of every other shows, as far as both came.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT * FROM (
    SELECT *, count(*) OVER (PARTITION BY run, k) AS members FROM (
        SELECT run, process, at_ns, value, row_number() OVER (PARTITION BY process ORDER BY record) AS k
        FROM report JOIN full_member USING (process) WHERE code = 'state'
    )
)
WHERE members > 1;

CREATE OR REPLACE TEMP VIEW violation AS
SELECT run, max(at_ns) AS at_ns, arg_max(process, at_ns) AS process, NULL AS message,
    format('committed state {} is another one than elsewhere at', k) AS what
FROM checked GROUP BY run, k HAVING count(DISTINCT value) > 1;
