"""The frames of the operation ``tail``: remote/logs/chunk_sender.py sends, the operator's logs/incoming.py checks them.

    hello      hello: true, run, attempt, clock_error_ns      the first
    lines      file, start, local_rank, rank, stream, offset, next; time, open, dropped; second, pieces
    began      began: the number of a start of the workers    when they are started again, in a follow
    exited     exited: how many workers have ended so far     when more of them have, in a follow
    stalled    stalled: how many stalls there were so far     when there is another, in a follow
    caught_up  caught_up, offsets {file: offset}              in a follow, between the past and what comes; caught_up
                                                              is false in all but the last

``file`` names a file of the spool: ``<start>.<local_rank>.<out|err>`` or ``agent.out``. With ``pieces`` the body holds
lines of both streams of that worker in the order in which they were written: the sizes of pieces that are of ``file``
and of its other stream in turn; ``second`` has ``offset``, ``next`` and ``time`` of the other.
"""

MAX_ATTEMPT = 1 << 20
MAX_PIECES = 400  # of a frame; their sizes fit into its header
MAX_OFFSETS = 1000  # of a frame; they fit into its header


def is_run(text: str) -> bool:
    """Whether a text can be a run's id."""
    import re  # hosts import this module for more than ids

    return bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", text))
