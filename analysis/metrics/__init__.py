"""The sections of summary.json: latency, load, calls, the cost of an order, views."""
