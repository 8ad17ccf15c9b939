"""What is kept of a project's imports: names, read whatever the bytes are; and which packages are distributions'."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.shared.records import written
from clusterddp.remote.worker import learned
from clusterddp.remote.worker.environment_reads import EVERY, is_free, named_in, own_to_one
from clusterddp.remote.worker.installed import installed
from clusterddp.remote.worker.learned import Learned, Package
from clusterddp.remote.worker.learning import clash_with, packages_of
from tests.unit.json_values import VALUES

if TYPE_CHECKING:
    from pathlib import Path

GOOD = Package(name="good", modules=("good", "good.part"), reads=("HF_HOME",), asks=("datasets",))
KNOWN = Learned(
    workdir="/home/u/w", folders=("/home/u/w",), secrets=("T",), packages=(GOOD,), named=("good",), tried="0a"
)


def test_what_is_kept_is_found_again_by_its_owner_alone(tmp_path: Path) -> None:
    learned.keep(str(tmp_path), KNOWN)
    key = learned.key_of(KNOWN.workdir)
    assert learned.find(str(tmp_path), key) == KNOWN
    assert learned.find(str(tmp_path), learned.key_of("/home/u/other")) is None
    assert (tmp_path / "learned").stat().st_mode & 0o777 == 0o700
    assert (tmp_path.joinpath(learned.path_of(str(tmp_path), key)).stat().st_mode & 0o777) == 0o600


@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_whatever_the_bytes_they_are_decoded_or_refused(data: bytes) -> None:
    assert all(part.isidentifier() for name in learned.decode_imported(data) for part in name.split("."))
    with pytest.raises(ValueError):  # noqa: PT011 - any of them, and nothing else
        learned.decode(data)


@given(name=st.sampled_from([*written(KNOWN), *written(GOOD)]), value=VALUES)
def test_whatever_a_field_is_it_is_decoded_or_refused(name: str, value: object) -> None:
    record = written(KNOWN)
    if name in record:
        record[name] = value
    else:
        record["packages"][0][name] = value
    with contextlib.suppress(ValueError):
        learned.decode(json.dumps(record).encode())


@pytest.mark.parametrize("name", ["other", "good.part/../x", "good..part", "os", "good;x", ""])
def test_a_module_that_is_not_its_packages_own_is_refused(name: str) -> None:
    record = written(KNOWN._replace(packages=(GOOD._replace(modules=(name,)),)))
    with pytest.raises(ValueError, match="has modules of another"):
        learned.decode(json.dumps(record).encode())


def distribution(folder: Path, name: str, url: dict[str, object] | None = None) -> None:
    """Install a package as a distribution, as pip would that took it from the url."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("")
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(f"{name}/__init__.py,sha256=x,0\n{name}-1.dist-info/RECORD,,\n")
    if url is not None:
        (info / "direct_url.json").write_text(json.dumps(url))


def test_only_packages_of_distributions_that_are_nobodys_working_copy_count_as_installed(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    distribution(site, "from_index")
    distribution(site, "from_wheel", {"url": "file:///w.whl", "archive_info": {}})
    distribution(site, "from_folder", {"url": "file:///mine", "dir_info": {}})
    distribution(site, "editable", {"url": "file:///mine", "dir_info": {"editable": True}})
    distribution(site, "linked", {})
    (site / "linked").rename(tmp_path / "mine")
    (site / "linked").symlink_to(tmp_path / "mine")
    (site / "copied").mkdir()
    (site / "copied" / "__init__.py").write_text("")
    distribution(site, "shadowed")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "shadowed.py").write_text("")
    names = ["from_index", "from_wheel", "from_folder", "editable", "linked", "copied", "shadowed", "no_such", "json"]
    search = [str(tmp_path / "path"), str(site), *sys.path]
    assert installed(names, search) == {"from_index", "from_wheel"}


def test_packages_are_in_the_order_of_their_imports_without_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    for name in ("aa", "bb"):
        distribution(site, name)
    monkeypatch.syspath_prepend(str(site))
    told = ["torch", "bb", "train_utils", "aa", "bb.part", "torch.more"]
    assert packages_of(told, {"torch", "aa"})[:1] == [Package(name="bb", modules=("bb", "bb.part"))]
    assert "aa" not in [one.name for one in packages_of(told, {"torch", "aa"})]


def test_what_differs_between_workers_runs_or_logins_is_not_to_be_read() -> None:
    assert own_to_one({"HOME", "HF_HOME"}) == ""
    for name in ("RANK", "SLURM_PROCID", "CLUSTERDDP_RUN_ID", "SSH_CONNECTION", "TORCHELASTIC_RUN_ID", EVERY):
        assert own_to_one({"HOME", name}) == name
    for name in ("HF_HOME", "ACCELERATE_MIXED_PRECISION", "PL_GLOBAL_SEED", "AWS_REGION", "CUDA_VISIBLE_DEVICES"):
        assert is_free(name)
        assert not is_free(name, reads=(name,))  # a package that is imported ahead has read it
        assert own_to_one({name}) == ""
    for name in ("OMP_NUM_THREADS", "CUDA_PREFER_SPINLOCKS_ON_HOST", "PYTORCH_ALLOC_CONF", "ANY", "PYTHONHASHSEED"):
        assert not is_free(name)


def test_a_librarys_names_of_such_variables_are_found_across_the_parts_it_is_read_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"\x7fELF....SLURM_PROCID\0PERCENT_RANKS\0RANK\0HF_HUB_X\0" + b"x" * 40 + b"\0LOCAL_RANK\0")
    for part in (1 << 22, 16):
        monkeypatch.setattr("clusterddp.remote.worker.environment_reads.PART", part)
        assert {"SLURM_PROCID", "RANK", "HF_HUB_X", "LOCAL_RANK"} <= named_in(str(library))
    assert named_in(str(tmp_path / "gone.so")) == {EVERY}


def test_a_project_that_sets_what_is_read_or_provides_what_is_asked_for_clashes(tmp_path: Path) -> None:
    folders = [str(tmp_path)]
    assert clash_with(folders, {"datasets"}, {"HF_HOME"}) == ""
    (tmp_path / "train.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nos.environ['HF_HOME'] = 'x'\n")
    assert clash_with(folders, {"datasets"}, {"HF_HOME"}).endswith(
        "train.py:3 sets HF_HOME, which is read when it is imported"
    )
    assert clash_with(folders, {"datasets"}, {"HOME"}) == ""
    (tmp_path / "datasets").mkdir()
    assert clash_with(folders, {"datasets"}, ()).endswith("datasets would be imported in place of an installed module")
