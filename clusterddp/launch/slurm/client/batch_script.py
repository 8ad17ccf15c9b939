"""Writes a run as the script of a job for ``sbatch``, readable, and as good when submitted by hand.

It never contains the values of secrets, since Slurm keeps scripts.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterddp.errors import UsageError
from clusterddp.launch.slurm.client.answers import minutes
from clusterddp.remote.shared.run.host_settings import HostSettings
from clusterddp.remote.shared.run.plan import NodePlan
from clusterddp.remote.shared.run.run_record import RunRecord
from clusterddp.remote.shared.run.run_settings import RunSettings
from clusterddp.remote.shared.schema.record import to_plain
from clusterddp.remote.shared.slurm.job_record import (
    COMMENT,
    NOT_OURS,
    NOT_SHARED,
    NOT_WRITTEN,
    OUR_CODE,
    SUBMITTED,
    SlurmJob,
    index_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOTICE_TIME = 120  # seconds before the time limit, or a preemption, at which the job gets a signal
END_OF_JSON = "END OF JOB"
PACKED_MARK = "# PACKED"  # the line before the archive that nodes unpack
# Options that the script sets itself: a line of the inventory that changed one would break every run.
SET_BY_SCRIPT = (
    "export", "chdir", "ntasks-per-node", "nodes", "open-mode", "output", "comment", "signal", "job-name", "array",
)  # fmt: skip
_SHORTENED = (SlurmJob, NodePlan, HostSettings, RunSettings, RunRecord)  # records written without defaults
_OPTION = re.compile(r"--([a-z][a-z-]*)(?:[= ].*)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """What a run asks of Slurm."""

    nodes: tuple[int, int]  # the least and the largest number of nodes
    nodelist: str = ""  # the nodes, if the inventory names them
    options: Mapping[str, str]  # sbatch's long options by name, without ``--``; an empty value for one that takes none
    lines: tuple[str, ...] = ()  # further options, unchanged
    inside: str = ""  # the number of an existing job that has the nodes; else empty
    array: str = ""  # the indices of an array of runs; else empty
    runs: Mapping[int, str] = field(default_factory=dict)  # the ids of those runs, by index


def slurm_time(seconds: float) -> str:
    """Return a time limit for ``--time``, in minutes, rounded up."""
    return str(max(1, math.ceil(seconds / 60)))


def extra_line(line: str) -> str:
    """Return a line of ``clusterddp_slurm_lines`` as an option of sbatch; raises UsageError."""
    option = line.strip().removeprefix("#SBATCH").strip()
    options = [_OPTION.fullmatch(word) for word in _words(option) if word.startswith("-")]
    names = [match[1] for match in options if match]
    if not _OPTION.fullmatch(option) or not option.isprintable() or not names or len(names) < len(options):
        raise UsageError(f"clusterddp_slurm_lines: {line!r} is no option of sbatch", remedy="write --reservation=night")
    for name in names:
        _refuse_own(option, name)
    return option


def _refuse_own(option: str, name: str) -> None:
    """Refuse an option that the script sets itself, or ``--clusters``; sbatch also takes abbreviations of names."""
    refused = (*SET_BY_SCRIPT, "clusters") if name != "ntasks" else ()  # a whole name, though one of these begins so
    meant = next((one for one in refused if one.startswith(name)), None)
    if meant == "clusters":
        raise UsageError(
            f"clusterddp_slurm_lines: {option!r}: only the login host's own cluster is asked for its jobs",
            remedy="use a login host of that cluster",
        )
    if meant:
        raise UsageError(
            f"clusterddp_slurm_lines: {option!r}: --{meant} is set by clusterddp itself", remedy="leave it out"
        )


def _words(option: str) -> list[str]:
    """Return the words into which a shell would split the option; none if its quotes are not balanced."""
    try:
        return shlex.split(option)
    except ValueError:
        return []


def script(job: SlurmJob, request: JobRequest, *, python: str, code: str = "", packed: str = "") -> str:
    """Return the whole script of a job, for ``python`` (3.8 or newer) on its nodes.

    ``code``: the path of our code, which all nodes see; unused if the nodes unpack it (``sent_code``).
    ``packed``: the archive, in base64, for nodes that share no folder; empty if it is left out.
    """
    plan, record = job.plan, job.plan.record
    folder = f"{job.state}/slurm/{plan.run}"
    command = shlex.join([*(["-m"] if record.module else []), record.script or "", *record.argv])
    by_hand = f"SLURM_JOB_ID={request.inside} bash" if request.inside else "sbatch"
    hint = [
        f"# `{by_hand}` of this file by hand does the same, once the code is in its place:",
        f"#   {_comment_text(plan.cwd)}",
    ]
    head = [
        "#!/bin/bash",
        f"# Run {plan.run} of clusterddp: {_comment_text(command)}",
        *(["# What its nodes unpack stands below it where clusterddp submits it."] if job.sent_code else hint),
        *(
            []
            if job.sent_code
            else [f"# and the values of {', '.join(plan.secrets)} in {_comment_text(folder)}/secrets.json (mode 0600)"]
            * bool(plan.secrets)
        ),
        "",
        *(f"#SBATCH --{line}" for line in _options(job, request) if not request.inside),
        *(f"#SBATCH {line}" for line in request.lines if not request.inside),
    ]
    whole = _has_whole_nodes(request) and not request.inside
    body = _BODY.format(
        state=shlex.quote(job.state),
        folder=_folder(plan.run, folder, request),
        seen="on each node" if job.sent_code else "every node sees it",
        shared="" if job.sent_code else _SHARED,
        unpack=_UNPACK.format(step=_step_options(plan, request)) if job.sent_code else "",
        by='"$python" -I -S "$code" slurm step "$folder" \\\n    ' if job.sent_code else "",
        judge=_CHECK_STATE,
        count=_COUNT_STARTS if request.inside else "",
        unwritten=NOT_WRITTEN,
        role="task" if job.sent_code else "node",
        take=_json_filter(plan.run, request),
        code=f'"$folder"/{OUR_CODE}' if job.sent_code else shlex.quote(code),
        python=_program(python),
        job=_format_json(without_defaults(job)),
        end=END_OF_JSON,
        step=_step_options(plan, request),
        whole=_ALL_GPUS if whole else "",
        gpus="${gpus:+--gpus=$gpus} " if whole else "",
    )
    return "\n".join(head) + "\n" + body + (f"\n{PACKED_MARK}\n{packed}" if job.sent_code else "")


def _program(path: str) -> str:
    """Return a program's path for a shell, which looks for the home of ``~/`` on the node."""
    return f"~/{shlex.quote(path[2:])}" if path[:2] == "~/" and path[2:] else shlex.quote(path)


def _folder(run: str, folder: str, request: JobRequest) -> str:
    """Return the line that sets a run's folder; in an array each run has its own."""
    if not request.array:
        return f"folder={shlex.quote(folder)}"
    ids = " ".join(f"[{index}]={run_id}" for index, run_id in request.runs.items())
    return f"runs=({ids})  # {run} is the array's id\nrun=${{runs[$SLURM_ARRAY_TASK_ID]}}\nfolder=$state/slurm/$run"


def _json_filter(run: str, request: JobRequest) -> str:
    """Return the command that writes the job's JSON; in an array it inserts each run's id."""
    return f'sed "s/{index_of(run)}/$SLURM_ARRAY_TASK_ID/g; s/{run}/$run/g"' if request.array else "cat"


def _step_options(plan: NodePlan, request: JobRequest) -> str:
    """Return the options of srun about nodes, for a job that was not submitted with them."""
    if not request.inside:
        return "--ntasks-per-node=1 " if plan.settings.elastic else ""
    nodes = request.nodes[1]
    return f"--overlap --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 "


_BODY = """
state={state}
{folder}  # of this run; {seen}
code={code}  # of clusterddp, the same on every node
python={python}  # what runs it there, 3.8 or newer

{shared}{judge}
# What the nodes start. They find each other in the folder, and choose addresses and ports for torchrun themselves.
# A requeue is the run's next attempt, and a start of its own.
{count}mkdir -p "$folder/start.$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}" || exit {unwritten}
rm -f "$folder/end.json"
{take} >"$folder/job.json.new" <<'{end}'
{job}
{end}
# The login host reads it meanwhile, and keeps the one that is there if the disk is full.
[ $? = 0 ] && mv "$folder/job.json.new" "$folder/job.json" || exit {unwritten}

# `--export=NONE` above keeps the environment of whoever submits out of the job; a step is to get the job's own.
unset SLURM_EXPORT_ENV

{unpack}\
# Signals to the job reach this shell alone, which tells the nodes: the notice before the time limit or a preemption is
# passed on to the workers that handle SIGUSR1; SIGTERM ends this start.
trap '"$python" -I -S "$code" slurm notice "$folder"' USR1
trap '"$python" -I -S "$code" slurm stop "$folder"' TERM

{whole}\
# One task a node: clusterddp's supervisor, which starts torchrun, keeps what the workers print, and ends all of it.
{by}srun --kill-on-bad-exit=1 {step}{gpus}--mpi=none ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} \\
    "$python" -I -S "$code" slurm {role} "$folder" &
step=$!
while kill -0 "$step" 2>/dev/null; do
    wait "$step"
    status=$?
done

# How the run ended, by the nodes' own word; the job ends with its exit code. With --relaunch it is requeued in place
# of that when its workers had the notice, or a node was lost.
exec "$python" -I -S "$code" slurm end "$folder" "$status"
"""


_COUNT_STARTS = """\
# So is this one by hand after others in the same job, whose files lie in the folder.
export SLURM_RESTART_COUNT=0
while [ -e "$folder/start.$SLURM_JOB_ID.$SLURM_RESTART_COUNT" ]; do
    SLURM_RESTART_COUNT=$((SLURM_RESTART_COUNT + 1))
done
"""
_SHARED = f"""\
# Whoever submits by clusterddp has made the folder: it is missing where this node does not share it.
[ "$1" != {SUBMITTED} ] || [ -e "$folder/job.json" ] || exit {NOT_SHARED}

"""
_CHECK_STATE = f"""\
# Code is run from the state folder. It has to be this user's, and the folders and links on the way to it this user's or
# root's, where nobody else could put their own in its place. A link is followed name by name, as it leads.
safe() {{
    local at= rest=${{1%/}}/ name link me=$(id -un 2>/dev/null) group=$(id -g)
    [[ $(getent group "$group") =~ ^"$me":[^:]*:[^:]*:("$me")?$ ]] || group=0  # others may be in any other one
    while [ "$rest" ]; do
        name=${{rest%%/*}} rest=${{rest#*/}}
        [ "$name" ] || continue
        at=$at/$name
        [ -e "$at" ] || mkdir -m 700 "$at"
        [ -n "$rest" ] || [ -L "$at" ] || break
        [ "$(cd / && find "$at" -maxdepth 0 '(' -uid 0 -o -uid "$UID" -o -uid "$(stat -c %u .)" ')' '(' -type l \\
            -o -perm -1000 -o ! -perm /022 -o ! -perm /002 '(' -gid 0 -o -gid "$group" ')' ')')" ] || return
        if [ -L "$at" ]; then
            link=$(readlink "$at") && [[ $link == /* ]] || link=${{at%/*}}/$link
            safe "$link/$rest"
            return
        fi
        [[ -k $at || $(ls -ld "$at") != d????w????+* ]] || return  # an access list may name others
    done
    [ ! -L "$at" ] && [ -d "$at" ] && [ -O "$at" ] && chmod 700 "$at"
}}
own() {{
    umask 077
    safe "$1" && return
    echo "clusterddp: $1 is not this user's alone on $HOSTNAME: set clusterddp_state to a folder of your own" >&2
    exit {NOT_OURS}
}}
own "$state"
"""
_UNPACK = f"""\
# The nodes share no folder. What they lack is at the end of this script, and each unpacks it; our own output is here.
exec >>"$folder.out" 2>&1
sed '1,/^{PACKED_MARK}$/d' "$0" | base64 -d | srun --kill-on-bad-exit=1 {{step}}--mpi=none \\
    bash -c "$(declare -f safe own)"'; own "$2"; mkdir -p "$1" && tar -C "$1" -xzmf -' bash "$folder" "$state" \\
    || exit $(($? == {NOT_OURS} ? {NOT_OURS} : {NOT_WRITTEN}))

"""
_ALL_GPUS = """\
# A job that has its nodes whole has all their GPUs, however many each has, and a step those that it asks for.
own=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}  # an array's number alone means all its jobs
gpus=$(scontrol show job -d -o "${own:-$SLURM_JOB_ID}" | grep -o 'JOB_GRES=[^ ]*' | tr '=,' '\\n\\n' |
    awk -F: '$1 == "gpu" {n += $NF} END {if (n) print n}')

"""
_GPU_OPTIONS = ("--gpus", "--gres", "--tres")  # prefixes of options that set a job's GPUs


def _has_whole_nodes(request: JobRequest) -> bool:
    """Whether the job has whole nodes, and no option sets their number of GPUs."""
    words = [word for line in request.lines for word in _words(line)]  # a line may have several options
    options = [*(f"--{name}" for name in request.options), *words]
    return "--exclusive" in words and not any(option.startswith(_GPU_OPTIONS) for option in options)


def _options(job: SlurmJob, request: JobRequest) -> list[str]:
    """Return the options of sbatch, without ``--``."""
    least, most = request.nodes
    plan = job.plan
    name = (plan.record.name or plan.run).removesuffix(f".{index_of(plan.run)}")
    fixed_first = [
        f"job-name={_quote(name)}",
        *([f"array={request.array}"] if request.array else []),
        f"comment={COMMENT}{plan.record.array or plan.run}",
        f"nodes={least}" if least == most else f"nodes={least}-{most}",
        *([f"nodelist={request.nodelist}"] if request.nodelist else []),
        *([] if plan.settings.elastic else ["ntasks-per-node=1"]),  # of a range, Slurm would give the least
    ]
    requested = [f"{name}={_quote(value)}" if value else name for name, value in request.options.items()]
    fixed_last = [
        *_notice(request),
        "export=NONE",
        "chdir=/",
        "open-mode=append",
        "output=/dev/null"
        if job.sent_code
        else f"output={_quote(job.state)}/slurm/{'%A_%a' if request.array else '%j'}.out",
    ]
    return fixed_first + requested + fixed_last


def _notice(request: JobRequest) -> list[str]:
    """Return the option for a signal before the end; none for a job so short that it would come at the start."""
    words = " ".join(_words(" ".join(request.lines)))  # without quotes
    lines = re.findall(r"--time[= ](\S+)", words)  # the last one counts for sbatch
    limit = minutes((request.options.get("time", ""), *lines)[-1])
    return [] if limit and limit * 60 <= 2 * NOTICE_TIME else [f"signal=B:USR1@{NOTICE_TIME}"]


def _format_json(job: Mapping[str, Any]) -> str:
    """JSON with a line for each field, and the plan's fields indented."""

    def lines(data: Mapping[str, Any], indent: str) -> str:
        fields = [f"{indent}{json.dumps(name)}: {value(one, name, indent)}" for name, one in sorted(data.items())]
        return ",\n".join(fields)

    def value(one: Any, name: str, indent: str) -> str:
        nested = bool(one) and name in {"plan", "record", "settings", "host_settings"}
        return f"{{\n{lines(one, indent + ' ')}\n{indent}}}" if nested else json.dumps(one, sort_keys=True)

    return f"{{\n{lines(job, ' ')}\n}}"


def _quote(value: str) -> str:
    """Return a value for a line of ``#SBATCH``, quoted if a shell would need it."""
    return shlex.quote(value) if re.search(r"[^\w@%+=:,./\[\]&|*!-]", value) else value


def _comment_text(text: str) -> str:
    """Return a text as one line, for a comment in a shell script."""
    return " ".join(text.split())[:200]


def without_defaults(value: Any) -> dict[str, Any]:
    """Return a record as JSON without fields that have their default, in nested records too."""
    defaults: Mapping[str, Any] = value._field_defaults
    fields = value._asdict()
    more = fields.pop("more", {})
    records = {name: without_defaults(part) for name, part in fields.items() if isinstance(part, _SHORTENED)}
    changed = {name: to_plain(part) for name, part in fields.items() if name not in defaults or part != defaults[name]}
    return {**more, **changed, **records}


def nodelist(names: Sequence[str]) -> str:
    """Nodes by name, for ``--nodelist``; ``UsageError`` if one cannot be a node's name in Slurm."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise UsageError(f"{name!r} is no name of a node of Slurm's", remedy="name hosts as `sinfo -N` does")
    return ",".join(names)
