"""The traffic of any program: conversations, silences, and the cost of TCP."""
