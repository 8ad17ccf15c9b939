"""What a host tells of packages, NCCL's files, proxies and the NCCL that is loaded."""

from __future__ import annotations

import ctypes.util
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.facts.job_paths import job_paths
from clusterddp.remote.probes.nccl_settings import folder_variables, settings
from clusterddp.remote.probes.packages import installed
from clusterddp.remote.probes.scripts import torch_facts
from tests.unit.facts_made import node

if TYPE_CHECKING:
    from pathlib import Path


def test_packages_are_told_by_their_folders_and_the_first_counts(tmp_path: Path) -> None:
    for name in (
        "one/Flash_Attn-2.5.8.dist-info",
        "one/ruamel.yaml-0.18.dist-info",
        "one/six-1.16.0-py3.11.egg-info",
        "one/noversion.egg-info",
        "one/torch",
        "two/flash_attn-2.0.dist-info",
    ):
        (tmp_path / name).mkdir(parents=True)
    found = installed([str(tmp_path / "one"), str(tmp_path / "two"), str(tmp_path / "none.zip")])
    assert found == {"flash-attn": "2.5.8", "ruamel-yaml": "0.18", "six": "1.16.0"}


def test_this_interpreters_packages_are_those_it_names_itself() -> None:
    code = "import importlib.metadata as m; print(m.version('pytest'))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert installed(sys.path)["pytest"] == said


def test_nccls_files_give_way_to_the_environment_and_to_the_users(tmp_path: Path) -> None:
    system, own, other = tmp_path / "system", tmp_path / ".nccl.conf", tmp_path / "other"
    system.write_text("# NCCL_NO=1\nNCCL_ALGO=Tree\nNCCL_DEBUG=INFO\nPATH=/x\n")
    own.write_text("NCCL_ALGO = Ring\nNCCL_IB_DISABLE=1\n")
    other.write_text("NCCL_ALGO=Other\n")
    env = {"NCCL_IB_DISABLE": "0"}
    assert settings(env, str(tmp_path), str(system)) == {"NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO"}
    env["NCCL_CONF_FILE"] = str(other)
    assert settings(env, str(tmp_path), str(system)) == {"NCCL_ALGO": "Other", "NCCL_DEBUG": "INFO"}
    assert settings({}, str(tmp_path / "none"), str(tmp_path / "none")) == {}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("http://alice:s3cret@proxy:3128", "http://***@proxy:3128"),
        ("alice:s3cret@proxy:3128", "***@proxy:3128"),
        ("http://proxy:3128", "http://proxy:3128"),
    ],
)
def test_a_proxy_is_told_without_whose_it_is(tmp_path: Path, value: str, told: str) -> None:
    assert settings({"HTTPS_PROXY": value}, str(tmp_path), str(tmp_path)) == {"https_proxy": told}


def test_places_are_variables_of_folders() -> None:
    assert folder_variables({"TMPDIR": "/scratch", "HOME": "/home/alice", "HF_HOME": ""}) == {"TMPDIR": "/scratch"}


def test_paths_of_a_job_are_those_its_variables_name() -> None:
    env = {"DATA": "/data", "BOTH": "/a:~/b", "URL": "/a:b", "WORD": "fast", "NOTHING": "", "NASTY": "/a\nb"}
    entry, facts = node(entry={"env": env}, folder_variables={"TMPDIR": "/scratch"})
    assert job_paths(entry, facts) == {"/scratch": "TMPDIR", "/data": "DATA", "/a": "BOTH", "~/b": "BOTH"}


@pytest.mark.parametrize(("number", "version"), [(22602, "2.26.2"), (21803, "2.18.3"), (2708, "2.7.8")])
def test_a_library_of_nccl_is_asked_itself(tmp_path: Path, number: int, version: str) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "nccl.c", tmp_path / "libnccl.so.2"
    source.write_text(f"int ncclGetVersion(int *version) {{ *version = {number}; return 0; }}\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    code = (
        f"import ctypes, clusterddp.remote.probes.scripts.torch_facts as ask; ctypes.CDLL({str(library)!r}); "
        "found = ask._nccl_library(); print(found, ask._library_version(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(library), version]


def test_without_a_library_of_nccl_there_is_no_version() -> None:
    assert ctypes.util.find_library("nccl") or torch_facts._nccl_library() is None
    assert torch_facts._library_version(None) is None
