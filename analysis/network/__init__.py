"""What the network was asked to do against what it did: accuracy, conservation of frames, faults."""
