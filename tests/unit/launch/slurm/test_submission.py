"""What a run under Slurm is submitted with."""

from __future__ import annotations

from clusterddp.launch.slurm.submission import split_secret_values


def test_variables_that_look_like_secrets_stand_in_no_script() -> None:
    given = {"LR": "3e-4", "HF_TOKEN": "hf_1", "API_KEY": "k", "KEY_FILE": "/k", "PLAIN": "x"}
    shown, hidden = split_secret_values(given, {"API_KEY", "PLAIN"})
    assert shown == {"LR": "3e-4", "KEY_FILE": "/k"}
    assert hidden == {"HF_TOKEN": "hf_1"}
