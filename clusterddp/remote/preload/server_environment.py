"""The variables that a warm server is started with, and those that must be as a run's workers have them."""

from typing import Container, Dict, Mapping, Optional

from ..fork_server.environ_reads import first_individual_variable, is_free

OF_THE_HOOK = ("CLUSTERDDP_HOOK", "CLUSTERDDP_USER_PYTHONPATH")


def differing_variable(given: Mapping[str, str], wanted: Mapping[str, str], reads: Container[str]) -> Optional[str]:
    """Return a variable that differs and that imports may have read; None if there is none."""
    names = sorted({*given, *wanted})
    return next((name for name in names if given.get(name) != wanted.get(name) and not is_free(name, reads)), None)


def server_environment(env: Mapping[str, str], secrets: Container[str], *, preload: bool) -> Dict[str, str]:
    """Return the variables of a run that its warm server gets; ``preload``: it imports more packages than torch."""
    # A package may read more names than torch does; the trial import on the server finds out which.
    read = {name for name in env if not first_individual_variable([name])} if preload else set()
    return {
        name: value
        for name, value in env.items()
        if name in OF_THE_HOOK or (not is_free(name, read) and name not in secrets)
    }
