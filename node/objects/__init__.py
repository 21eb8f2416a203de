"""Object groups (paper 004, DOOCE): typed asynchronous calls of objects and of groups of objects, in one order."""

# Protocols are registered in a package that builds cores of this one, and these build on cores of that one. Whichever
# is imported first, the registry is complete before any module here is.
import node.protocols  # noqa: F401
