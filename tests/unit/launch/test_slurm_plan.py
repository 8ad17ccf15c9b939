"""What a run under Slurm is submitted with."""

from __future__ import annotations

from typing import Any

import pytest

from clusterddp.errors import UsageError
from clusterddp.launch.options import RunOptions
from clusterddp.launch.slurm_plan import submission, without_hidden


def test_variables_that_look_like_secrets_stand_in_no_script() -> None:
    given = {"LR": "3e-4", "HF_TOKEN": "hf_1", "API_KEY": "k", "KEY_FILE": "/k", "PLAIN": "x"}
    shown, hidden = without_hidden(given, {"API_KEY", "PLAIN"})
    assert shown == {"LR": "3e-4", "KEY_FILE": "/k"}
    assert hidden == {"HF_TOKEN": "hf_1"}


def test_a_run_is_not_repeated_with_other_code_than_it_had() -> None:
    site: Any = None  # is not looked at
    options = RunOptions(script="train.py", again="r1")
    with pytest.raises(UsageError, match="--again: no run is repeated under Slurm yet; start its script again by hand"):
        submission(lambda: site, site, options, dry=True)
