"""Record which environment variables an import reads, through os.environ or by name in a library that it loads."""

import os
import re
from contextlib import contextmanager
from typing import Any, Container, Iterable, Iterator, Set

from .fork_checks import mapped_files
from .forked_worker import is_of_a_worker

# Importing torch reads none of these (measured: docs/performance.md). Frameworks may; then the reads are recorded.
OF_A_LOGIN = {"SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK", "XDG_SESSION_ID", "PWD", "OLDPWD"}
OF_THE_DRIVER = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS"}
OF_LIBRARIES = {*OF_THE_DRIVER, "CUBLAS_WORKSPACE_CONFIG"}
FREE = OF_A_LOGIN | OF_LIBRARIES
FREE_PREFIXES = (
    "CLUSTERDDP_", "NCCL_", "TORCH_NCCL_", "GLOO_", "TP_SOCKET_", "UCX_",
    "ACCELERATE_", "DEEPSPEED_", "DIFFUSERS_", "FSDP_", "HF_", "HUGGINGFACE_", "LIGHTNING_", "PL_", "SAFETENSORS_",
    "TOKENIZERS_", "TRANSFORMERS_",
    "AWS_", "CLEARML_", "COMET_", "MLFLOW_", "NEPTUNE_", "RAY_", "TENSORBOARD_", "WANDB_",
)  # fmt: skip
OF_A_RANK = ("SLURM_", "PMI_", "PMIX_", "OMPI_", "JSM_", "NODE_RANK", "CLUSTERDDP_")
EVERY = "*"  # the whole environment was read at once
# Only the names that may differ between workers or runs matter in a library; all others have to be equal anyway.
_IN_LIBRARIES = re.compile(
    rb"(?:SLURM_|PMI_|PMIX_|OMPI_|TORCHELASTIC_|%s)[A-Z0-9_]+|%s"
    % ("|".join(FREE_PREFIXES).encode(), "|".join(sorted(OF_LIBRARIES)).encode())
    + rb"|(?:LOCAL_|GROUP_|ROLE_)?(?:RANK|WORLD_SIZE)(?=\0)|(?<=\0)MASTER_(?:ADDR|PORT)(?=\0)"
)
_WORD = re.compile(rb"[A-Z][A-Z0-9_]{3,}")  # searched for first: ten times as fast as _IN_LIBRARIES
MAX_SEARCHED = 1 << 30  # bytes of a library that are searched
PART = 1 << 22


def is_free(name: str, reads: Container[str] = ()) -> bool:
    """Whether a variable may differ from its value at the time of the imports; not if it is in ``reads``."""
    return (name in FREE or name.startswith(FREE_PREFIXES) or is_of_a_worker(name)) and name not in reads


def first_individual_variable(reads: Iterable[str]) -> str:
    """Return the first of the names whose value differs between workers, runs or logins; empty if there is none."""
    for name in sorted(reads):
        if name == EVERY or name in OF_A_LOGIN or name.startswith(OF_A_RANK) or is_of_a_worker(name):
            return name
    return ""


class RecordingEnviron(dict):  # type: ignore[type-arg] # the zipapp knows no typing
    """The dictionary behind os.environ, which records the names that are read."""

    asked: Set[str]

    def __getitem__(self, name: Any) -> Any:
        self.asked.add(os.fsdecode(name))
        return dict.__getitem__(self, name)

    def __contains__(self, name: object) -> bool:
        if isinstance(name, (bytes, str)):
            self.asked.add(os.fsdecode(name))
        return dict.__contains__(self, name)

    def __iter__(self) -> Iterator[Any]:
        self.asked.add(EVERY)
        return dict.__iter__(self)


@contextmanager
def record_reads(asked: Set[str], *, in_libraries: bool = True) -> Iterator[None]:
    """Add the variables read within the block to ``asked``; add ``EVERY`` if the whole environment is read.

    With ``in_libraries``, also add those that are named in libraries loaded within the block.
    """
    environments: Any = [os.environ, os.environb]
    original = environments[0]._data  # noqa: SLF001
    before = mapped_files()
    recording = RecordingEnviron(original)
    recording.asked = asked
    for one in environments:
        one._data = recording  # noqa: SLF001
    try:
        yield
    finally:
        for one in environments:
            one._data = original  # noqa: SLF001
        original.clear()
        original.update(dict.items(recording))
    for path in (mapped_files() - before) if in_libraries else ():
        asked.update(named_in(path))


def named_in(path: str) -> Set[str]:
    """Return the variables of ``_IN_LIBRARIES`` that a library names; with ``EVERY`` if it cannot be searched whole."""
    found: Set[str] = set()
    rest = b"\0"
    try:
        with open(path, "rb") as stream:
            for _ in range(MAX_SEARCHED // PART):
                part = stream.read(PART)
                if not part:
                    return found
                text = rest + part
                for match in _WORD.finditer(text):
                    names = _IN_LIBRARIES.findall(text, match.start(), match.end() + 1)
                    found.update(map(os.fsdecode, names))
                rest = text[-64:]
    except OSError:
        pass  # treated like a library that is too large
    return found | {EVERY}
