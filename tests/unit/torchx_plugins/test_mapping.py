"""An app of torchx becomes the options of a run, or one line that names what a run does not support."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.errors import UsageError
from clusterddp.launch.options import RunOptions
from torchx_plugins.schedulers.clusterddp._mapping import map_app, role_name

if TYPE_CHECKING:
    from collections.abc import Sequence

IMAGE = "torchx:1"
APP_ID = "train-1"


@dataclass
class Role:
    """A stand-in with the fields of torchx's class; `tests/torchx` compares them."""

    name: str = "train"
    image: str = IMAGE
    min_replicas: int | None = 2
    entrypoint: str = "bash"
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    num_replicas: int = 2
    max_retries: int = 0
    retry_policy: Any = "APPLICATION"
    metadata: dict[str, Any] = field(default_factory=dict)
    mounts: list[Any] = field(default_factory=list)
    workspace: Any = None
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass
class App:
    name: str = "train"
    roles: Sequence[Any] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)


def line(*program: str, nodes: str = "2", endpoint: str = "$${${rank0_env}:=localhost}:29500") -> list[str]:
    """Return the arguments of a role as torchx's component dist.ddp makes them."""
    options = ["--rdzv_id", "${app_id}", "--nnodes", nodes, "--nproc_per_node", "1", "--tee", "3", "--role", ""]
    words = [shlex.quote(word) for word in [*options, *program]]
    return ["-c", " ".join(["torchrun", "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint, *words])]


def mapped(role: Role) -> RunOptions:
    return map_app(App(roles=[role]), APP_ID, IMAGE, {})


DDP = Role(args=line("train.py", "--lr", "1"))


def test_the_line_of_ddp_becomes_a_run() -> None:
    found = mapped(replace(DDP, env={"TORCHX_JOB_ID": "clusterddp://torchx/${app_id}"}, max_retries=2))
    assert (found.script, found.args, found.nnodes, found.nproc_per_node) == ("train.py", ("--lr", "1"), (2, 2), 1)
    assert found.env == {"TORCHX_JOB_ID": f"clusterddp://torchx/{APP_ID}"}
    assert (found.name, found.max_restarts, found.module) == (APP_ID, 2, False)


def test_a_module_and_an_elastic_run() -> None:
    found = mapped(Role(args=line("-m", "pkg.train", "-m", nodes="1:4"), min_replicas=1, num_replicas=4))
    assert (found.script, found.module, found.args, found.nnodes) == ("pkg.train", True, ("-m",), (1, 4))


@given(st.lists(st.text(st.characters(exclude_characters="$\0", exclude_categories=["Cs"]))))
def test_arguments_arrive_as_they_were_given(words: list[str]) -> None:
    assert mapped(replace(DDP, args=line("train.py", *words))).args == tuple(words)


def test_a_dollar_is_treated_as_torchx_does() -> None:
    assert mapped(replace(DDP, args=line("t.py", "$HOME", "$$x", "${other}"))).args == ("$HOME", "$x", "${other}")


@pytest.mark.parametrize(
    ("role", "named"),
    [
        (replace(DDP, entrypoint="echo", args=["hi"]), "entrypoint 'echo'"),
        (replace(DDP, args=["-c", "torchrun train.py"]), "torchrun line"),
        (replace(DDP, args=["-c", f"{DDP.args[1]}; rm -r x"]), "torchrun line"),
        (replace(DDP, args=["-c", f"{DDP.args[1]} $(id)"]), "torchrun line"),
        (replace(DDP, args=["-c", f"{DDP.args[1]} 'open"]), "entrypoint"),
        (replace(DDP, args=line("--no-python", "x")), "torchrun line"),
        (replace(DDP, args=line("t.py", endpoint="elsewhere:1")), "torchrun line"),
        (replace(DDP, args=[DDP.args[0], DDP.args[1].replace("c10d", "static")]), "--rdzv_backend 'static'"),
        (replace(DDP, args=[DDP.args[0], DDP.args[1].replace("c10d", "c10d --rdzv_conf a=1")]), "--rdzv_conf"),
        (replace(DDP, mounts=["x"]), "mounts"),
        (replace(DDP, image="other:1"), "image 'other:1'"),
        (replace(DDP, workspace="x"), "workspace"),
        (replace(DDP, metadata={"k": 1}), "metadata 'k'"),
        (replace(DDP, overrides={"image": 1}), "overrides 'image'"),
        (replace(DDP, retry_policy="REPLICA", max_retries=1), "retry policy 'REPLICA'"),
        (replace(DDP, num_replicas=3), "replicas"),
        (replace(DDP, env={"A": "$img_root"}), "macro $img_root in the variable 'A'"),
        (replace(DDP, args=line("t.py", "${replica_id}")), "macro ${replica_id} in the script's arguments"),
        (replace(DDP, env={"RANK": "1"}), "RANK"),
    ],
)
def test_what_a_run_cannot_honour_is_refused_by_name(role: Role, named: str) -> None:
    with pytest.raises(UsageError) as refused:
        mapped(role)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_several_roles_are_refused() -> None:
    with pytest.raises(UsageError, match="has 2 roles"):
        map_app(App(roles=[DDP, DDP]), APP_ID, IMAGE, {})


WORDS = st.sampled_from(["torchrun", "--nnodes", "2", "x y", "$img_root", "-m", "--role", "'", ";", "\n", "train.py"])
TEXTS = st.one_of(st.text(), WORDS)
LINES = st.one_of(
    st.lists(TEXTS),
    st.lists(TEXTS).map(lambda words: ["-c", " ".join(words)]),
    st.lists(TEXTS).map(lambda words: line(*words)),
    st.tuples(st.integers(0, 400), TEXTS).map(lambda at: ["-c", DDP.args[1][: at[0]] + at[1] + DDP.args[1][at[0] :]]),
)
ROLES = st.builds(
    Role,
    name=TEXTS,
    image=st.sampled_from([IMAGE, "other"]),
    entrypoint=st.sampled_from(["bash", "python"]),
    args=LINES,
    env=st.dictionaries(TEXTS, TEXTS, max_size=2),
    num_replicas=st.integers(1, 3),
    min_replicas=st.none() | st.integers(0, 3),
    max_retries=st.integers(-1, 2),
    metadata=st.dictionaries(TEXTS, TEXTS, max_size=1),
    mounts=st.lists(TEXTS, max_size=1),
)


@given(
    st.builds(App, name=TEXTS, roles=st.lists(ROLES, max_size=2), metadata=st.dictionaries(TEXTS, TEXTS, max_size=1))
)
def test_any_app_gives_a_run_or_one_line(app: App) -> None:
    try:
        assert isinstance(map_app(app, APP_ID, IMAGE, {}), RunOptions)
    except UsageError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 - either may be


@pytest.mark.parametrize(
    ("script", "module", "name"), [("a/b.c.py", False, "b.c"), (".x", False, ".x"), ("p.q", True, "q")]
)
def test_the_role_is_named_as_ddp_names_it(script: str, module: bool, name: str) -> None:  # noqa: FBT001
    assert role_name(script, module=module) == name
