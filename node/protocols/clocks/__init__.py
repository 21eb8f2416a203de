"""Synchronisation of physical clocks (paper 001)."""
