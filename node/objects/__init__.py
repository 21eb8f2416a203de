"""Object groups (paper 004, DOOCE): typed asynchronous calls of objects and of groups of objects, in one order."""
