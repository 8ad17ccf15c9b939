"""Names of hosts and network interfaces."""
