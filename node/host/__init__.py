"""The surroundings of a core in a node: host, event loop, sockets, clock, workload, application, recorder."""
