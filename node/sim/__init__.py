"""The mechanics of a simulated network: virtual time, and what one direction of one wire does to frames."""
