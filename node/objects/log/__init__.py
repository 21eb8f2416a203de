"""The log of a sub-network as a replicated state machine: its entries, and the state that they make."""
