-- Fence order: the fence of a section is larger than those of all sections before it. That of a grant after an exclusion
-- is smaller than those of all sections that begin after the exclusion.

CREATE OR REPLACE TEMP VIEW checked AS
SELECT run, process, record, message, at_ns, excluded_ns, is_late, fence FROM every_section WHERE fence IS NOT NULL;

CREATE OR REPLACE TEMP VIEW violation AS
SELECT one.run, one.at_ns, one.process, one.message, format('the fence {} is out of order at', one.fence) AS what
FROM checked AS one SEMI JOIN checked AS other
    ON other.run = one.run AND NOT other.is_late AND if(
        one.is_late,
        other.at_ns >= one.excluded_ns AND other.fence <= one.fence,
        (other.at_ns, other.process, other.record) < (one.at_ns, one.process, one.record) AND other.fence >= one.fence
    );
