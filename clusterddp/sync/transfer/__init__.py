"""How chunks of files travel between this machine and the hosts."""
