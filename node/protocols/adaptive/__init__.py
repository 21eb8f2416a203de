"""The core that selects the cheapest total order (paper 003)."""
