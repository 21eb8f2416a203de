"""The managers of one machine and of its address spaces: requests, direct channels, votes, dispatch."""
