"""Turn torchx's description of an app into the options of a run, if ``dist.ddp`` or ``dist.torchrun`` has made it.

Pure, and without torchx: `AppLike` and `RoleLike` name what is read of its classes. Whatever a run could not honour is
refused by its name; `resource`, `port_map` and the rendezvous are replaced by what clusterddp finds out itself.
"""

from __future__ import annotations

import re
import shlex
from string import Template
from typing import TYPE_CHECKING, Any, Protocol

from clusterddp.errors import UsageError
from clusterddp.launch.options import RunOptions, run_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_REFUSED_MACROS = ("img_root", "replica_id", "rank0_env")
_ENDPOINT = re.compile(r"localhost:0|\$\$\{\$\{rank0_env\}:=localhost\}:[0-9]{1,5}", re.ASCII)
_ONLY = "only dist.ddp and dist.torchrun are run by clusterddp"
_OTHERS = "name another scheduler with -s"
# In their order on the line; of the last two the value changes nothing here: all output is kept, by rank.
_LINE = ("--rdzv_backend", "--rdzv_endpoint", "--rdzv_id", "--nnodes", "--nproc_per_node", "--tee", "--role")


class RoleLike(Protocol):
    """What is read of a torchx ``Role``."""

    name: str
    image: str
    entrypoint: str
    args: list[str]
    env: dict[str, str]
    num_replicas: int
    min_replicas: int | None
    max_retries: int
    retry_policy: Any
    metadata: dict[str, Any]
    mounts: list[Any]
    workspace: Any
    overrides: dict[str, Any]


class AppLike(Protocol):
    """What is read of a torchx ``AppDef``."""

    name: str
    roles: Sequence[Any]
    metadata: dict[str, str]


def map_app(app: AppLike, app_id: str, image: str, settings: Mapping[str, Any]) -> RunOptions:
    """Return the options of the run that an app asks for.

    Args:
        app: As the component made it.
        app_id: The run's name, and the value of the macro of that name.
        image: torchx's own image, which stands for none.
        settings: More options of the run, by their names.

    Raises:
        UsageError: The app is none of ``dist.ddp``'s, or asks for what a run cannot honour; names it.
    """
    if len(app.roles) != 1:
        raise UsageError(f"app {app.name!r} has {len(app.roles)} roles; {_ONLY}", remedy=_OTHERS)
    role: RoleLike = app.roles[0]
    _refuse_what_is_not_honoured(app, role, image)
    nodes, workers, program = _take_apart(role)
    module = program[:1] == ["-m"]
    script, *args = [_filled(word, app_id, "the script's arguments") for word in program[module:]]
    least = nodes.partition(":")[0]
    if (role.min_replicas, str(role.num_replicas)) != (int(least), nodes.rpartition(":")[2]):
        raise UsageError(f"role {role.name!r}: its replicas are not the nodes of --nnodes {nodes}", remedy=_OTHERS)
    return run_options(
        script,
        args,
        {
            "module": module,
            "nnodes": nodes,
            "nproc_per_node": workers,
            "env": {name: _filled(value, app_id, f"the variable {name!r}") for name, value in role.env.items()},
            "max_restarts": role.max_retries,
            "name": app_id,
            **settings,
        },
    )


def role_name(script: str, *, module: bool) -> str:
    """Return the name that ``dist.ddp`` gives the role of a script."""
    return script.rpartition(".")[2] if module else re.sub(r"(?<=.)\.[^.]*$", "", script.rpartition("/")[2])


def _refuse_what_is_not_honoured(app: AppLike, role: RoleLike, image: str) -> None:
    """Refuse each field that a run could only ignore; raises UsageError."""
    if role.mounts:
        raise UsageError("mounts: clusterddp runs no containers", remedy="leave out --mounts")
    if role.image != image:
        raise UsageError(f"image {role.image!r}: clusterddp runs no containers", remedy="leave out --image")
    if role.workspace:
        raise UsageError("workspace: clusterddp syncs the current folder's project", remedy="start from that folder")
    if app.metadata or role.metadata:
        key = min(map(str, [*app.metadata, *role.metadata]))
        raise UsageError(f"metadata {key!r}: clusterddp has no use for it", remedy="leave out --metadata")
    if role.overrides:
        raise UsageError(f"overrides {min(map(str, role.overrides))!r}: they are not applied", remedy=_OTHERS)
    policy = str(getattr(role.retry_policy, "value", role.retry_policy))
    if role.max_retries and policy != "APPLICATION":
        raise UsageError(
            f"retry policy {policy!r}: all workers restart together", remedy="leave it as dist.ddp sets it"
        )


def _take_apart(role: RoleLike) -> tuple[str, str, list[str]]:
    """Return the nodes, the workers a node, and the words of the script; raises UsageError."""
    other = UsageError(f"entrypoint {role.entrypoint!r} of role {role.name!r}: {_ONLY}", remedy=_OTHERS)
    if role.entrypoint != "bash" or len(role.args) != 2 or role.args[0] != "-c":
        raise other
    line = role.args[1]
    try:
        words = shlex.split(line)
    except ValueError:
        raise other from None
    if words[:1] != ["torchrun"]:
        raise other
    if "--rdzv_conf" in words[3:4]:
        raise UsageError("--rdzv_conf: clusterddp sets the rendezvous up itself", remedy="leave out --rdzv_conf")
    end = 1 + 2 * len(_LINE)
    given = dict(zip(words[1:end:2], words[2:end:2], strict=False))
    # The endpoint alone stands unquoted: the line made again of its words is the proof that a shell would read these.
    again = " ".join(word if word == given.get("--rdzv_endpoint") else shlex.quote(word) for word in words)
    if tuple(given) != _LINE or again != line or len(words) == end:
        raise UsageError(f"role {role.name!r}: its torchrun line is not dist.ddp's; {_ONLY}", remedy=_OTHERS)
    if given["--rdzv_backend"] != "c10d":
        raise UsageError(
            f"--rdzv_backend {given['--rdzv_backend']!r}: clusterddp sets the rendezvous up itself",
            remedy="leave out --rdzv_backend",
        )
    program = words[end:]
    fixed = _ENDPOINT.fullmatch(given["--rdzv_endpoint"]) and given["--rdzv_id"] == "${app_id}" and not given["--role"]
    if not fixed or (program[0].startswith("-") and (program[0] != "-m" or len(program) < 2)):
        raise UsageError(f"role {role.name!r}: its torchrun line is not dist.ddp's; {_ONLY}", remedy=_OTHERS)
    if not re.fullmatch(r"[0-9]{1,6}(:[0-9]{1,6})?", given["--nnodes"], re.ASCII):
        raise UsageError(f"--nnodes {given['--nnodes']!r} is no number of nodes", remedy="write -j 2x4")
    return given["--nnodes"], given["--nproc_per_node"], program


def _filled(text: str, app_id: str, where: str) -> str:
    """Replace the macro ``app_id`` as torchx does; raises UsageError for a macro that has no one value in a run."""
    for match in Template.pattern.finditer(text):
        if (match["named"] or match["braced"]) in _REFUSED_MACROS:
            raise UsageError(f"macro {match[0]} in {where}: a run has no such value", remedy="leave it out")
    return Template(text).safe_substitute(app_id=app_id)
