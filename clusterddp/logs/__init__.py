"""Select, merge and show the log lines of many hosts.

Selection → tail on each host → frames → checked → Merge → Renderer → bytes
"""
