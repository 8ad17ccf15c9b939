"""The exit codes that have a meaning of their own: of runs, commands, and the processes that start workers. Pure."""

EXIT_TIME_LIMIT = 124  # ended by a time limit, as of timeout(1)
EXIT_NOT_THE_SCRIPT = 125  # the fault is not the script's
EXIT_CANNOT_START = 127  # a shell's for a command that it does not find
EXIT_INTERRUPTED = 130  # 128 + SIGINT: by Ctrl-C
EXIT_KILLED = 137  # 128 + SIGKILL: also by the kernel's out-of-memory killer
EXIT_STOPPED = 143  # 128 + SIGTERM: by an order


def shell_code(returncode: int) -> int:
    """Convert a return code of ``subprocess`` to a shell's exit code: -N, killed by signal N, becomes 128 + N."""
    return returncode if returncode >= 0 else 128 - returncode
