-- State: the k-th report STATE of one full member shows what the k-th of every other shows, as far as both came. When the
-- run drained, all came equally far.

CREATE OR REPLACE TEMP VIEW shown AS
SELECT run, process, at_ns, value, row_number() OVER (PARTITION BY process ORDER BY record) AS k
FROM report JOIN full_member USING (process) WHERE code = 'state';

CREATE OR REPLACE TEMP VIEW checked AS
SELECT * FROM (SELECT *, count(*) OVER (PARTITION BY run, k) AS members FROM shown) WHERE members > 1;

CREATE OR REPLACE TEMP VIEW violation AS
SELECT run, max(at_ns) AS at_ns, arg_max(process, at_ns) AS process, NULL AS message,
    format('committed state {} is another one than elsewhere at', k) AS what
FROM checked GROUP BY run, k HAVING count(DISTINCT value) > 1
UNION ALL
SELECT run, max(at_ns), arg_min(process, came), NULL, 'not all states that others committed are committed at'
FROM (
    SELECT full_member.run, full_member.process, count(k) AS came, max(at_ns) AS at_ns
    FROM full_member LEFT JOIN shown USING (process) GROUP BY full_member.run, full_member.process
)
WHERE run NOT IN (SELECT run FROM undrained)
GROUP BY run HAVING min(came) < max(came);
