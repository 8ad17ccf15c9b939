"""What the helper asks a warm server for: the start of a run's node."""

from typing import Dict, List, NamedTuple


class StartRequest(NamedTuple):
    """What the helper asks for."""

    program: List[str]  # the helper's interpreter, with the arguments up to the zipapp
    spool: str
    env: Dict[str, str]  # of fence and supervisor
    # which listening sockets came after the supervisor's stdin and stdout: the store's, run control's
    listening: List[bool]
    score: int  # the oom_score_adj of all of them
    cwd: str  # the workers'
    argv: List[str]  # a worker's command line
    worker_env: Dict[str, str]  # what all workers have in common
    log: str  # the path of the fork server's output
