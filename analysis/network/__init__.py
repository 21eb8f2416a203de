"""Requested against realised state of the network: accuracy, conservation of frames, faults."""
