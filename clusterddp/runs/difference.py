"""Compare two runs by the records they wrote when they started. Pure."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterddp.remote.shared.text.redaction import HIDDEN
from clusterddp.text.folding import folded_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterddp.remote.shared.run.run_record import RunRecord

# options that are compared as variables, secrets and launcher
_OTHER_SUBJECTS = frozenset({"env", "secret", "launcher"})
_PHRASES = {"version": "version of {}", "variable": "variable {}", "secret": "secret {}", "option": "option --{}"}
CODE_DIGITS, ENVIRONMENT_DIGITS = 6, 4  # letters of a digest that are shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One difference between two runs."""

    subject: str  # the kind of thing that differs: ``code``, ``version``, ``variable``, …
    name: str = ""  # which one, if there are several of that kind
    a: str | None  # its value in the first run; None if that run has none or did not record it
    b: str | None  # its value in the second run

    @property
    def what(self) -> str:
        """The difference in words: ``version of torch``."""
        return _PHRASES.get(self.subject, "{}").format(self.name) if self.name else self.subject


def code_of(record: RunRecord) -> str | None:
    """Return the code's digest as shown to users; None if no sync had filled the folder."""
    return record.code[:CODE_DIGITS] or None


def environment_of(record: RunRecord) -> str | None:
    """Return the environment's digest as shown to users; None if the run used the hosts' own."""
    return record.environment[:ENVIRONMENT_DIGITS] if record.environment else None


def describe_code(record: RunRecord) -> str:
    """Return the digests in words: ``code 3f9a2c, environment 4be1``; empty where neither is known."""
    digests = (("code", code_of(record)), ("environment", environment_of(record)))
    return ", ".join(f"{subject} {digest}" for subject, digest in digests if digest)


def differences(a: RunRecord, b: RunRecord) -> list[Difference]:
    """Return the differences in a fixed order: code, then the environment it ran in, then its arguments and options."""
    texts = [(subject, text_of(a), text_of(b)) for subject, text_of in _SUBJECTS]
    return [
        *(Difference(subject=subject, a=text_a, b=text_b) for subject, text_a, text_b in texts if text_a != text_b),
        *_differences_by_name("version", a.versions, b.versions),
        *_differences_by_name("variable", a.variables, b.variables),
        *_secret_differences(a, b),
        *_differences_by_name("option", _options(a), _options(b)),
    ]


def _command(record: RunRecord) -> str | None:
    """Return the script, or ``-m`` and the module, as written on torchrun's command line."""
    return shlex.join([*(["-m"] if record.module else []), record.script]) if record.script else None


def _git(record: RunRecord) -> str | None:
    """Return the commit that the project was at, and whether it had uncommitted changes."""
    if record.git is None:
        return None
    commit = str(record.git.get("commit") or "no commit")[:12]
    return f"{commit}, changed" if record.git.get("dirty") else commit


def _gpus(record: RunRecord) -> str | None:
    """Return the GPU models with their numbers and hosts: ``2 × A100 on gpu[00-03]``."""
    models: dict[str, list[str]] = {}
    for host, names in record.gpus.items():
        for name in dict.fromkeys(names):
            models.setdefault(f"{names.count(name)} × {name}", []).append(host)
    return ", ".join(f"{model} on {folded_names(hosts)}" for model, hosts in models.items()) or None


# what is compared as one text: the subject, and the function that returns its text in a record
_SUBJECTS: tuple[tuple[str, Callable[[RunRecord], str | None]], ...] = (
    ("code", code_of),
    ("git", _git),
    ("environment", environment_of),
    ("script", _command),
    ("arguments", lambda record: shlex.join(record.argv) or None),
    ("folder", lambda record: record.subfolder or None),
    ("launcher", lambda record: record.launcher),
    ("hosts", lambda record: folded_names(record.hosts) or None),
    ("ranks", lambda record: str(record.world_size) if record.world_size else None),
    ("GPUs", _gpus),
)


def _differences_by_name(subject: str, a: Mapping[str, str | None], b: Mapping[str, str | None]) -> list[Difference]:
    """Compare two tables of values by name."""
    names = [name for name in sorted({*a, *b}) if a.get(name) != b.get(name)]
    return [Difference(subject=subject, name=name, a=a.get(name), b=b.get(name)) for name in names]


def _secret_differences(a: RunRecord, b: RunRecord) -> list[Difference]:
    """Report secrets that only one run has; values are not recorded, so secrets of both are not compared."""
    return _differences_by_name("secret", *(dict.fromkeys(record.secrets, HIDDEN) for record in (a, b)))


def _options(record: RunRecord) -> dict[str, str | None]:
    """Return the command-line options other than script, arguments, variables and name."""
    given = (record.options or {}).items()
    return {name.replace("_", "-"): _shown_value(value) for name, value in given if name not in _OTHER_SUBJECTS}


def _shown_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
