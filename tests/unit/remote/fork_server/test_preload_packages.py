"""What is kept of a package's trial, read whatever the bytes are; which names mean which modules; what clashes."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.fork_server.environ_reads import EVERY, first_individual_variable, is_free, named_in
from clusterddp.remote.fork_server.imports import Imports
from clusterddp.remote.fork_server.preload_packages import (
    KeptVerdicts,
    Preload,
    clash_with,
    decode,
    digest,
    verdicts_folder,
)
from clusterddp.remote.fork_server.preload_trial import NO_MODULE, NO_SUCH, PreloadVerdict, modules_of, reason_against
from clusterddp.remote.shared.schema.record import to_fields
from tests.unit.json_values import VALUES

if TYPE_CHECKING:
    from pathlib import Path

GOOD = PreloadVerdict(name="good", modules=("good", "good.part"), reads=("HF_HOME",), asks=("datasets",))
KEPT = KeptVerdicts(verdicts=(GOOD,), paths=("/site/good/__init__.py",), digest="0a")


@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_whatever_the_bytes_they_are_decoded_or_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of them, and nothing else
        decode(data)


@given(name=st.sampled_from([*to_fields(KEPT), *to_fields(GOOD)]), value=VALUES)
def test_whatever_a_field_is_it_is_decoded_or_refused(name: str, value: object) -> None:
    record = to_fields(KEPT)
    if name in record:
        record[name] = value
    else:
        record["verdicts"][0][name] = value
    with contextlib.suppress(ValueError):
        decode(json.dumps(record).encode())


@pytest.mark.parametrize("name", ["good.part/../x", "good..part", "good;x", ""])
def test_what_is_no_modules_name_is_refused(name: str) -> None:
    record = to_fields(KEPT._replace(verdicts=(GOOD._replace(modules=(name,)),)))
    with pytest.raises(ValueError, match="is no module"):
        decode(json.dumps(record).encode())
    assert decode(json.dumps(to_fields(KEPT)).encode()) == KEPT


def test_verdicts_hold_while_files_and_what_folders_provide_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "good.py"
    file.write_text("")
    paths = [str(tmp_path), str(file)]
    known = digest(paths, [GOOD])
    (tmp_path / "results.csv").write_text("")
    assert digest(paths, [GOOD]) == known
    (tmp_path / "datasets.py").write_text("")  # it looks for that
    assert digest(paths, [GOOD]) != known
    (tmp_path / "datasets.py").unlink()
    file.write_text("changed")
    assert digest(paths, [GOOD]) != known


def test_without_names_nothing_is_tried_or_written(tmp_path: Path) -> None:
    preload = Preload(str(tmp_path), ())
    preload.decide(lambda: None)
    assert (preload.verdicts, list(tmp_path.iterdir())) == ((), [])
    assert verdicts_folder(str(tmp_path)).startswith(str(tmp_path / "preload"))


def test_a_name_means_a_module_or_what_a_distribution_has_installed(tmp_path: Path) -> None:
    info = tmp_path / "Scikit_Learn-1.5.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(
        "sklearn/__init__.py,,\nsklearn/base.py,,\n_more.cpython-311-x86_64-linux-gnu.so,,\nsix.py,,\n"
        "../../bin/sk,,\nScikit_Learn-1.5.dist-info/RECORD,,\nnot-a-module.py,,\nthings/data.txt,,\n"
    )
    search = [str(tmp_path), str(tmp_path / "none")]
    assert modules_of("scikit-learn", search) == ["_more", "six", "sklearn"]
    assert modules_of("scikit_learn", search) == ["_more", "six", "sklearn"]
    assert modules_of("json.decoder", search) == ["json.decoder"]
    assert modules_of("no-such-one", search) is modules_of("no_such_one.part", search) is None


def test_a_distribution_below_a_namespace_package_means_its_topmost_packages(tmp_path: Path) -> None:
    info = tmp_path / "google_cloud_storage-2.1.dist-info"
    info.mkdir()
    (info / "top_level.txt").write_text("google\n")
    (info / "RECORD").write_text(
        "google/cloud/storage/__init__.py,sha256=x,0\ngoogle/cloud/storage/blob/__init__.py,,\n"
        "google/cloud/storage_v2/__init__.py,,\ngoogle/cloud/py.typed,,\n../../bin/x/__init__.py,,\n"
    )
    search = [str(tmp_path)]
    assert modules_of("google-cloud-storage", search) == ["google.cloud.storage", "google.cloud.storage_v2"]


def test_a_distribution_of_the_older_format_means_its_top_level_names(tmp_path: Path) -> None:
    for name, names in (("python_dateutil-2.8-py3.10", "dateutil\n"), ("scripts_only-1", "\n")):
        (tmp_path / f"{name}.egg-info").mkdir()
        (tmp_path / f"{name}.egg-info" / "top_level.txt").write_text(names)
    (tmp_path / "a_file-1.egg-info").write_text("Name: a-file\n")
    search = [str(tmp_path)]
    assert modules_of("python-dateutil", search) == ["dateutil"]
    assert modules_of("scripts-only", search) == modules_of("a-file", search) == []


def test_what_names_no_module_is_not_said_to_be_missing() -> None:
    assert reason_against(None, Imports({})) == NO_SUCH
    assert reason_against([], Imports({})) == NO_MODULE


def test_what_differs_between_workers_runs_or_logins_is_not_to_be_read() -> None:
    assert first_individual_variable({"HOME", "HF_HOME"}) == ""
    for name in ("RANK", "SLURM_PROCID", "CLUSTERDDP_RUN_ID", "SSH_CONNECTION", "TORCHELASTIC_RUN_ID", EVERY):
        assert first_individual_variable({"HOME", name}) == name
    for name in ("HF_HOME", "ACCELERATE_MIXED_PRECISION", "PL_GLOBAL_SEED", "AWS_REGION", "CUDA_VISIBLE_DEVICES"):
        assert is_free(name)
        assert not is_free(name, reads=(name,))  # a package that is imported ahead has read it
        assert first_individual_variable({name}) == ""
    for name in ("OMP_NUM_THREADS", "CUDA_PREFER_SPINLOCKS_ON_HOST", "PYTORCH_ALLOC_CONF", "ANY", "PYTHONHASHSEED"):
        assert not is_free(name)


def test_a_librarys_names_of_such_variables_are_found_across_the_parts_it_is_read_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"\x7fELF....SLURM_PROCID\0PERCENT_RANKS\0RANK\0HF_HUB_X\0" + b"x" * 40 + b"\0LOCAL_RANK\0")
    for part in (1 << 22, 16):
        monkeypatch.setattr("clusterddp.remote.fork_server.environ_reads.PART", part)
        assert {"SLURM_PROCID", "RANK", "HF_HUB_X", "LOCAL_RANK"} <= named_in(str(library))
    assert named_in(str(tmp_path / "gone.so")) == {EVERY}


def test_a_project_that_sets_what_is_read_or_provides_what_is_asked_for_clashes(tmp_path: Path) -> None:
    folders, script = [str(tmp_path)], str(tmp_path / "start")
    assert clash_with(folders, script, {"datasets"}, {"HF_HOME"}) == ""
    (tmp_path / "train.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nos.environ['HF_HOME'] = 'x'\n")
    assert clash_with(folders, script, {"datasets"}, {"HF_HOME"}).endswith(
        "train.py:3 sets HF_HOME, which is read when it is imported"
    )
    assert clash_with(folders, script, {"datasets"}, {"HOME"}) == ""
    (tmp_path / "start").write_text("import os\nos.environ['HOME'] = 'x'\n")
    assert clash_with(folders, script, {"datasets"}, {"HOME"}).endswith(
        "start:2 sets HOME, which is read when it is imported"
    )
    (tmp_path / "datasets").mkdir()
    assert clash_with(folders, script, {"datasets"}, ()).endswith(
        "datasets would be imported in place of an installed module"
    )
