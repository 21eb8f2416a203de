"""CO: causal order over a network that loses messages (paper 000)."""
