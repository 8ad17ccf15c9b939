"""Operations on environments: report the interpreter, wheels and environments of a host; build an environment."""

import hashlib
import os
import shutil
import stat
import time
import zipfile
from typing import Any, Dict, Iterable, List

from ..helper.request import Request
from ..shared.environment.environment_records import (
    BaseInterpreter,
    BaseRequest,
    BuildAnswer,
    BuildRequest,
    EnvironmentProof,
    LacksRequest,
    ProofRequest,
)
from ..shared.schema.record import to_fields
from ..shared.wire.partial_files import free_bytes
from ..system.bootstrap import Refused, private
from ..system.bounded_child import Child
from ..system.interpreter import find_interpreter
from ..system.setup_env import setup_environment
from .folders import WORK, BuiltEnvironment, EnvironmentStore, installed_digest

BUILD_TIMEOUT = 3600.0  # seconds that uv may take on a slow disk
_QUERY_TIMEOUT = 60.0
_REMOVED_VARIABLES = ("VIRTUAL_ENV", "PYTHONPATH")  # if setup lines set them: they would lead away from the environment
_DESCRIBE_PYTHON = """
import json, os, platform, sys, sysconfig
name, version = platform.libc_ver()
if name != "glibc":
    name, version = "musl", "1.2"
os.write(int(sys.argv[2]), json.dumps({
    "version": platform.python_version(), "implementation": sys.implementation.name, "machine": platform.machine(),
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "libc": name, "libc_version": [int(part) for part in version.split(".")[:2]],
}).encode())
"""


def environment_base(request: Request) -> Dict[str, Any]:
    """Operation: the interpreter that environments are built with, and those there are.

    Takes a ``BaseRequest``, returns a ``BaseInterpreter``. Raises Refused if the setup lines fail, or there is no
    interpreter.
    """
    asked = request.read_args(BaseRequest)
    env = setup_environment(asked.setup, dict(os.environ))
    left = sorted(name for name in _REMOVED_VARIABLES if env.pop(name, ""))
    interpreter = find_interpreter(asked.python, env, asked.workdir)
    answer = Child(
        [interpreter.python, "-c", _DESCRIBE_PYTHON], env=env, timeout=_QUERY_TIMEOUT, cwd="/", input_data=b""
    ).answer()
    if not answer.payload:
        raise Refused("%s does not tell what it is: %s" % (interpreter.python, answer.last_line()))
    from ..shared.wire.frames import parse_json

    store = EnvironmentStore(request.state)
    whole = {ident: built.digest for ident in store.all() for built in [store.ready(ident)] if built}
    what = parse_json(answer.payload)
    return to_fields(BaseInterpreter(python=interpreter.python, left=tuple(left), ready=whole, **what))


def environment_lacks(request: Request) -> List[str]:
    """Operation: those wheels of a ``LacksRequest`` that this host lacks, by digest.

    They are sent by user_files/push_operations.py. Raises Refused if the disk lacks space for them and the environment.
    """
    asked = request.read_args(LacksRequest)
    store = EnvironmentStore(request.state)
    store.make()
    lacking = []
    for sha256, size in asked.wheels.items():
        path = store.wheel(sha256)
        if not os.path.isfile(path) or os.path.getsize(path) != size:
            lacking.append(sha256)
        else:
            os.utime(path)  # it is about to be used: a removal of environments then keeps it
    room, needs = free_bytes(store.folder), asked.room
    if room is not None and room < needs:
        message = "the environment needs %d MB, %d are free in %s" % (needs // 10**6 + 1, room // 10**6, store.folder)
        raise Refused(message, "make room there (`clusterddp down --environments`), or set clusterddp_state")
    return lacking


def environment_build(request: Request) -> Dict[str, Any]:
    """Operation: build an environment in its final folder, unless it is complete.

    Takes a ``BuildRequest``, returns a ``BuildAnswer``. Raises Refused if uv cannot build it.
    """
    build = request.read_args(BuildRequest)
    store = EnvironmentStore(request.state)
    with store.locked(build.ident):
        existing = store.ready(build.ident)
        return to_fields(BuildAnswer(digest=existing.digest if existing else _build(store, build)))


def environment_proof(request: Request) -> Dict[str, Any]:
    """Operation: what is installed in an environment; takes a ``ProofRequest``, returns an ``EnvironmentProof``."""
    store = EnvironmentStore(request.state)
    path = os.path.dirname(os.path.dirname(request.read_args(ProofRequest).python))
    ident = os.path.basename(path)
    built = store.ready(ident) if path == os.path.join(store.folder, ident) else None
    if not built:
        return to_fields(EnvironmentProof(path=path, there=False, built="", now=""))
    return to_fields(EnvironmentProof(path=path, there=True, built=built.digest, now=installed_digest(path)))


def _build(store: EnvironmentStore, build: BuildRequest) -> str:
    """Build an environment of the host's wheels with uv; returns the digest of what is installed."""
    target = store.folder_of(build.ident)
    work = target + WORK
    for folder in (target, work):
        shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.join(work, "links"), mode=0o700)
    try:
        try:
            for file, sha256 in build.wheels.items():
                os.link(store.wheel(sha256), os.path.join(work, "links", os.path.basename(file)))
            _refuse_damaged(store, [build.uv])  # it runs before anything else checks it
        except FileNotFoundError as error:
            message = "`clusterddp down --environments` has removed wheels from %s meanwhile" % store.folder
            raise Refused(message, "run again") from error
        uv = _extract_uv(store.wheel(build.uv), work)
        requirements = os.path.join(work, "requirements.txt")
        with open(requirements, "w", encoding="utf-8", opener=private) as out:
            out.write(build.requirements)
        env = _uv_environment(setup_environment(build.setup, dict(os.environ)), work)
        _run_uv([uv, "venv", "--quiet", "--offline", "--no-project", "--python", build.python, target], env)
        links = ["--no-index", "--find-links", os.path.join(work, "links"), "--require-hashes"]
        if build.wheels:
            python = os.path.join(target, "bin", "python")
            try:
                _run_uv([uv, "pip", "sync", "--quiet", "--offline", *links, "--python", python, requirements], env)
            except Refused:
                _refuse_damaged(store, build.wheels.values())
                raise
        digest = installed_digest(target)
        built = BuiltEnvironment(
            digest=digest,
            lock=build.lock,
            built=time.time_ns(),
            base=build.python,
            project=build.project,
            wheels=tuple(sorted([*build.wheels.values(), build.uv])),
        )
        store.complete(build.ident, built)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return digest


def _refuse_damaged(store: EnvironmentStore, wheels: Iterable[str]) -> None:
    """Remove the wheels whose content does not match their digest, so that they are sent again; raises Refused."""
    damaged = []
    for sha256 in wheels:
        with open(store.wheel(sha256), "rb") as stream:
            if _sha256(stream) != sha256:
                damaged.append(sha256)
    for sha256 in damaged:
        os.unlink(store.wheel(sha256))
    if damaged:
        raise Refused("%d wheels in %s were damaged and are removed" % (len(damaged), store.folder), "run again")


def _extract_uv(wheel: str, work: str) -> str:
    """Extract the static program from uv's wheel; its path."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        program = os.path.join(work, "uv")
        with archive.open(name) as source, open(program, "wb", opener=private) as out:
            os.fchmod(out.fileno(), stat.S_IRWXU)
            shutil.copyfileobj(source, out)
    return program


def _uv_environment(env: Dict[str, str], work: str) -> Dict[str, str]:
    """The environment for uv: without the host's own uv and pip settings, and with a cache in the work folder."""
    kept = {
        name: value
        for name, value in env.items()
        if name not in _REMOVED_VARIABLES and not name.startswith(("UV_", "PIP_"))
    }
    own = {"UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_LINK_MODE": "hardlink", "UV_NO_PROGRESS": "1"}
    return dict(kept, UV_CACHE_DIR=os.path.join(work, "cache"), **own)


def _run_uv(argv: List[str], env: Dict[str, str]) -> None:
    answer = Child(argv, env=env, timeout=BUILD_TIMEOUT, cwd="/").answer()
    if answer.status != 0:
        lines = [line.strip(" \u00d7\u2570\u2500\u25b6\u2502") for line in answer.output.splitlines() if line.strip()]
        message = " ".join(lines[:5])[:500] or "status %s" % answer.status
        raise Refused("the environment cannot be built: %s" % message.replace("error: ", "", 1))


def _sha256(stream: Any) -> str:
    found = hashlib.sha256()
    while True:
        data = stream.read(1 << 20)
        if not data:
            return found.hexdigest()
        found.update(data)
