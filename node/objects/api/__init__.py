"""What programs use: objects, proxies, calls and their replies, groups and names; and the virtual loop they run on."""
