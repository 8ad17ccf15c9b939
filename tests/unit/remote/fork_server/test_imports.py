"""What is imported for workers before the first fork."""

from __future__ import annotations

import pytest

from clusterddp.remote.fork_server.imports import OLDER_WORKER_MODULES, WORKER_MODULES, worker_modules


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0+cpu", "3.0.0a0+git12"])
def test_torch_from_2_10_on_lets_forks_share_what_ddp_imports(version: str) -> None:
    assert worker_modules(version) == WORKER_MODULES


@pytest.mark.parametrize("version", ["2.2.2+cu121", "2.9.1", "", "main"])
def test_an_older_or_unknown_torch_would_share_a_folder_for_temporary_files_so_half_of_it_is_imported(
    version: str,
) -> None:
    assert worker_modules(version) == OLDER_WORKER_MODULES
