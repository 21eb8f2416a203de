-- No ghost: a message is delivered only in views of which the process that submitted it is a member.

CREATE OR REPLACE TEMP VIEW checked AS
FROM in_view;

CREATE OR REPLACE TEMP VIEW violation AS
SELECT in_view.run, at_ns, in_view.process, in_view.message, 'delivered in a view that its sender is not in by' AS what
FROM in_view JOIN message USING (message)
ANTI JOIN named ON (named.process, named.nth) = (in_view.process, in_view.nth)
    AND (named.member, named.incarnation) = (message.origin, message.incarnation);
