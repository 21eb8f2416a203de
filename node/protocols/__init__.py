"""The ordering cores. `node.registry` knows them by name."""
