"""User-Mode Linux, the supervisor of namespaces, and the agents that work inside them."""
