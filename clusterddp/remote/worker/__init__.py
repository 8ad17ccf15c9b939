"""Around one worker: the shim that is its parent, its environment, whether the kernel killed it for memory."""
