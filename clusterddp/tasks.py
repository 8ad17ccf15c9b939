"""Fabric tasks, where users import them; api/tasks.py holds them."""

from clusterddp.api.tasks import cluster, doctor, exec, facts, host, logs, pull, runs, start, status, stop, sync  # noqa: A004 - a task's name

__all__ = ["cluster", "doctor", "exec", "facts", "host", "logs", "pull", "runs", "start", "status", "stop", "sync"]
