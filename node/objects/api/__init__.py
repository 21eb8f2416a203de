"""The interface of programs: objects, proxies, calls and replies, groups and names; and their virtual loop."""
