"""Files in .github follow the schemas of GitHub, and its workflow does nothing that is known to be unsafe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / ".github"
SCHEMAS = {
    "vendor.github-workflows": "workflows/*.yml",
    "custom.github-workflows-require-timeout": "workflows/*.yml",
    "vendor.github-issue-forms": "ISSUE_TEMPLATE/[!c]*.yml",
    "vendor.github-issue-config": "ISSUE_TEMPLATE/config.yml",
}


def outcome(program: str, *words: str | Path) -> tuple[int, str]:
    path = Path(sys.executable).with_name(program)
    if not path.exists():
        pytest.skip(f"{program} is not installed")
    done = subprocess.run([path, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_are_as_github_wants_them(schema: str) -> None:
    paths = sorted(FOLDER.glob(SCHEMAS[schema]))
    assert paths
    code, said = outcome("check-jsonschema", "--builtin-schema", schema, *paths)
    assert code == 0, said


def test_the_workflow_is_not_known_to_be_unsafe() -> None:
    code, said = outcome("zizmor", "--offline", "--pedantic", FOLDER)
    assert code == 0, said
