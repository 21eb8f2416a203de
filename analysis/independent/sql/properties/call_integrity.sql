-- Call integrity: no object gets a call twice, one that is not for it, one that its caller did not submit before, or one with
-- another payload than submitted; nor a call (operation 0 in its SUBMIT) that its caller says was REFUSED. Where messages are for objects, no
-- delivery is to the member itself (`nth` 0).

CREATE OR REPLACE TEMP VIEW checked AS
SELECT process.run, process.member, got_any.* FROM got_any JOIN process USING (process)
UNION ALL
SELECT run, member, process, 0, message, record, at_ns, NULL, NULL, 0
FROM step JOIN process USING (process) JOIN for_objects USING (run) WHERE event = 'deliver' AND object = 0;

CREATE OR REPLACE TEMP VIEW violation AS
SELECT run, at_ns, process, message, format('got twice by object {} of', object) AS what FROM checked WHERE nth > 1
UNION ALL
SELECT run, at_ns, process, message, 'delivered to no object of' FROM checked WHERE nth = 0
UNION ALL
SELECT run, at_ns, process, message, format('never asked for, but got by object {} of', object)
FROM checked ANTI JOIN submission USING (message)
WHERE nth = 1
UNION ALL
SELECT checked.run, checked.at_ns, checked.process, message, format('not for it, but got by object {} of', checked.object)
FROM checked JOIN call USING (message)
ANTI JOIN is_for ON (is_for.message, is_for.member, is_for.object) = (checked.message, checked.member, checked.object)
WHERE nth = 1 AND is_known
UNION ALL
SELECT checked.run, checked.at_ns, checked.process, message, format('refused, but got by object {} of', checked.object)
FROM checked JOIN call USING (message) JOIN record ON (record.process, record.record) = (call.process, call.record)
WHERE nth = 1 AND record.value & 255 = 0 AND message IN (SELECT message FROM told WHERE code = 'refused')
UNION ALL
SELECT checked.run, checked.at_ns, checked.process, message, format('got before it was asked for by object {} of', checked.object)
FROM checked JOIN call USING (message)
WHERE nth = 1 AND checked.at_ns < call.at_ns
UNION ALL
SELECT checked.run, checked.at_ns, checked.process, message, format('got with another payload by object {} of', checked.object)
FROM checked JOIN submission USING (message)
WHERE nth = 1 AND (checked.size_bytes, checked.checksum) <> (submission.size_bytes, submission.checksum);
