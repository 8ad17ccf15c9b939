"""One archive with all that a run and its hosts tell of it, for whoever looks at it later without the hosts."""
