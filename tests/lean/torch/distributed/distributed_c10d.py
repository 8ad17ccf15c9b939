"""No groups of processes; but whoever waits for this module's import, as a worker's start-up hook does, meets it."""
