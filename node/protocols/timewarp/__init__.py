"""Time Warp: total order acted upon before it is certain (paper 003)."""
