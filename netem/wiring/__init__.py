"""From a topology to the kernel: the plan, its steps, and the netlink messages that carry them out."""
