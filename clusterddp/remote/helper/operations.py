"""The table of the helper's operations: name → module and function. Each runs in its own child process."""

from typing import Any, Callable

TABLE = {
    "facts": "probes.facts:facts",
    "clock": "probes.clock:clock",
    "health": "probes.health:health",
    "gpu_health": "probes.gpu_health:gpu_health",
    "usage": "probes.usage:usage",
    "mark": "probes.shared_folders:mark",
    "marked": "probes.shared_folders:marked",
    "unmark": "probes.shared_folders:unmark",
    "listen": "probes.reachability:listen",
    "dial": "probes.reachability:dial",
    "election": "probes.rdzv_host:election",
    "stray_ranks": "probes.stray_ranks:stray_ranks",
    "drain": "probes.bandwidth:drain",
    "pour": "probes.bandwidth:pour",
    "workdir_state": "workdir.sync_operations:workdir_state",
    "data_state": "workdir.data:data_state",
    "sync_apply": "workdir.sync_operations:sync_apply",
    "push_check": "user_files.push_operations:push_check",
    "push_apply": "user_files.push_operations:push_apply",
    "pull_list": "user_files.pull_operations:pull_list",
    "pull_read": "user_files.pull_operations:pull_read",
    "workdirs_beside": "workdir.other_workdirs:workdirs_beside",
    "remove_workdirs": "workdir.other_workdirs:remove_workdirs",
    "environment_base": "environment.install_operations:environment_base",
    "environment_lacks": "environment.install_operations:environment_lacks",
    "environment_build": "environment.install_operations:environment_build",
    "environment_proof": "environment.install_operations:environment_proof",
    "environments": "environment.removal:environments",
    "remove_environments": "environment.removal:remove_environments",
    "start": "supervisor.start:start",
    "commit": "supervisor.start:commit",
    "renew": "supervisor.start:renew",
    "invite": "supervisor.start:invite",
    "claim": "supervisor.start:claim",
    "stop": "processes.stop:stop",
    "runs": "supervisor.status_operation:runs",
    "bundle": "supervisor.node_bundle:bundle",
    "stacks": "processes.stacks:stacks",
    "traces": "processes.traces:traces",
    "ended_traces": "processes.ended_traces:ended_traces",
    "pace": "supervisor.pace_operation:pace",
    "debug_stops": "processes.debug_stops:debug_stops",
    "debug": "processes.debug_stops:debug",
    "attend": "processes.debug_stops:attend",
    "signal": "supervisor.signal_operation:signal",
    "clean": "cleanup.uninstall:clean",
    "holdings": "cleanup.holdings:holdings",
    "remove_everything": "cleanup.everything:remove_everything",
    "forget": "cleanup.uninstall:forget",
    "warm_server": "preload.server_folder:warm_server",
    "warm_ahead": "supervisor.preload_operation:warm_ahead",
    "orphans": "processes.orphans:orphans",
    "tail": "logs.tail:tail",
    "last_words": "logs.last_words:last_words",
    "slurm_command": "slurm.login_operations:slurm_command",
    "slurm_submit": "slurm.job_cleanup:slurm_submit",
    "slurm_runs": "slurm.login_operations:slurm_runs",
    "slurm_stop": "slurm.login_operations:slurm_stop",
    "slurm_clean": "slurm.job_cleanup:slurm_clean",
    "slurm_secrets": "slurm.collection:slurm_secrets",
    "slurm_broadcast": "slurm.code_delivery:slurm_broadcast",
    "slurm_arrived": "slurm.code_delivery:slurm_arrived",
    "slurm_collect": "slurm.collection:slurm_collect",
    "slurm_collected": "slurm.collection:slurm_collected",
    "slurm_ended": "slurm.login_operations:slurm_ended",
    "exec": "shell.execute:execute",
    "shell": "shell.terminal:shell",
    "forward": "shell.forward:forward",
}


_PACKAGE = __name__.rpartition(".helper.")[0]


def find(name: str) -> Callable[[Any], Any]:
    """Import and return the function of an operation; raises KeyError if there is no such operation."""
    module, _, function = TABLE[name].partition(":")
    operation: Callable[[Any], Any] = getattr(__import__("%s.%s" % (_PACKAGE, module), fromlist=[function]), function)
    return operation
