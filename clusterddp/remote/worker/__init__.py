"""Start and watch one worker: the shim that is its parent, its environment, its start-up hook, its grace at the end."""
