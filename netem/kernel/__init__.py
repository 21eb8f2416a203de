"""The kernel that carries the wires: its choice, User-Mode Linux, and the agents that work inside namespaces."""
