"""The training interpreter and torch's facts: the real torch here, and a stand-in that counts its imports."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.probes.torch import installations, torch_facts
from clusterddp.remote.system.bootstrap import Refused
from clusterddp.remote.system.interpreter import Interpreter, find_interpreter

if TYPE_CHECKING:
    from pathlib import Path

STAND_IN = """
import os
with open({note!r}, "a") as note:
    note.write("imported\\n")
{extra}
__version__ = "9.9"
class version: cuda, hip = "12.8", None
class distributed:
    is_gloo_available = staticmethod(lambda: True)
    is_nccl_available = staticmethod(lambda: True)
class cuda:
    device_count = staticmethod(lambda: {count})
    class nccl: version = staticmethod(lambda: (2, 27, 5))
    @staticmethod
    def get_device_name(i):
        {naming}
"""


class Site:
    """A folder of packages with the stand-in installed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.note, self.state = folder / "site", folder / "note", folder / "state"
        (self.folder / "torch").mkdir(parents=True)
        (self.folder / "torch-9.9.dist-info").mkdir()
        self.state.mkdir()
        self.install()

    def install(self, *, extra: str = "", naming: str = "return 'card %d' % i", count: int = 2) -> None:
        code = STAND_IN.format(note=str(self.note), extra=extra, naming=naming, count=count)
        (self.folder / "torch" / "__init__.py").write_text(code)
        os.utime(self.folder / "torch", ns=(1, 1))
        os.utime(self.folder / "torch-9.9.dist-info", ns=(1, 1))

    def ask(self, *, depends: tuple[str, ...] = ("a",), fresh: bool = False) -> dict[str, object]:
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        interpreter = find_interpreter(sys.executable, env, None)
        return torch_facts(interpreter, env, state=str(self.state), depends=depends, fresh=fresh)

    @property
    def imports(self) -> int:
        return self.note.read_text().count("imported") if self.note.exists() else 0


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_real_torch_is_asked(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    interpreter = find_interpreter(sys.executable, dict(os.environ), None)
    facts = torch_facts(interpreter, dict(os.environ), state=str(tmp_path), depends=())
    assert facts["import_error"] is None
    assert facts["version"] == torch.__version__
    assert facts["gloo"] == torch.distributed.is_gloo_available()
    assert facts["device_count"] == torch.cuda.device_count()


def test_everything_torch_says_is_collected(site: Site) -> None:
    assert site.ask() == {
        "version": "9.9",
        "cuda": "12.8",
        "hip": None,
        "nccl": "2.27.5",
        "nccl_library": None,
        "nccl_loaded": None,
        "gloo": True,
        "nccl_available": True,
        "device_count": 2,
        "device_names": ["card 0", "card 1"],
        "device_error": None,
        "import_error": None,
    }


def test_torch_is_imported_once(site: Site) -> None:
    assert site.ask() == site.ask()
    assert site.imports == 1


def test_a_new_installation_is_asked_anew(site: Site) -> None:
    site.ask()
    os.utime(site.folder / "torch-9.9.dist-info", ns=(2, 2))
    site.ask()
    assert site.imports == 2


def test_another_nccl_beside_the_same_torch_is_asked_anew(site: Site) -> None:
    record = site.folder / "nvidia_nccl_cu12-2.26.2.dist-info"
    record.mkdir()
    site.ask()
    record.rename(site.folder / "nvidia_nccl_cu12-2.27.3.dist-info")  # pip install nvidia-nccl-cu12==2.27.3
    site.ask()
    assert site.imports == 2


def test_another_setup_or_other_gpus_are_asked_anew(site: Site) -> None:
    site.ask(depends=("a",))
    site.ask(depends=("b",))
    assert site.imports == 2


def test_fresh_asks_anew(site: Site) -> None:
    site.ask()
    site.ask(fresh=True)
    assert site.imports == 2


def test_a_failed_import_is_a_fact_and_is_never_kept(site: Site) -> None:
    site.install(extra="raise OSError('libcudart.so.12: cannot open shared object file\\nmore')")
    assert site.ask()["import_error"] == "OSError: libcudart.so.12: cannot open shared object file"
    site.install()
    assert site.ask()["import_error"] is None


def test_an_import_that_kills_the_interpreter_is_a_fact(site: Site) -> None:
    site.install(extra="os.write(2, b'Illegal instruction here\\n'); os.kill(os.getpid(), 4)")
    assert site.ask()["import_error"] == "import torch ended with status -4: Illegal instruction here"


def test_gpus_that_do_not_start_are_a_fact_and_never_kept(site: Site) -> None:
    site.install(naming="raise RuntimeError('Error 802: system not yet initialized')")
    assert site.ask()["device_error"] == "Error 802: system not yet initialized"
    site.ask()
    assert site.imports == 2


def test_what_the_import_prints_is_not_taken_for_an_answer(site: Site) -> None:
    site.install(extra='print(\'{"version": "0"}\')')
    assert site.ask()["version"] == "9.9"


def test_a_damaged_cache_is_asked_anew(site: Site) -> None:
    site.ask()
    (kept,) = (site.state / "facts").iterdir()
    kept.write_text('{"format": 1, "torch": [')
    assert site.ask()["version"] == "9.9"
    assert site.imports == 2


def test_a_state_folder_that_cannot_be_written_costs_only_the_cache(site: Site) -> None:
    site.state.rmdir()
    site.state.write_text("a file")
    assert site.ask()["version"] == "9.9"


def test_installations_are_found_without_an_import(site: Site) -> None:
    found = [line.rsplit("/", 1)[1].split()[0] for line in installations([str(site.folder), "/nonexistent.zip"])]
    assert found == ["torch", "torch-9.9.dist-info"]
    assert site.imports == 0


def interpreter_at(path: Path, text: str = '#!/bin/sh\nexec "{python}" "$@"\n') -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)
    return path


def test_python_comes_before_python3_and_from_the_environments_path(tmp_path: Path) -> None:
    interpreter_at(tmp_path / "python3", "#!/bin/sh\nexit 9\n")
    interpreter_at(tmp_path / "python")
    found = find_interpreter(None, {"PATH": str(tmp_path)}, None)
    assert isinstance(found, Interpreter)
    assert found.version == sys.version.split()[0]


def test_python3_serves_where_there_is_no_python(tmp_path: Path) -> None:
    interpreter_at(tmp_path / "python3")
    assert find_interpreter(None, {"PATH": str(tmp_path)}, None).python == sys.executable


def test_a_relative_interpreter_is_the_workdirs(tmp_path: Path) -> None:
    interpreter_at(tmp_path / ".venv" / "bin" / "python")
    assert find_interpreter(".venv/bin/python", {"PATH": ""}, str(tmp_path)).path


def test_a_virtual_environments_link_is_kept(tmp_path: Path) -> None:
    link = tmp_path / "env" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(os.path.realpath(sys.executable))
    assert find_interpreter(str(link), {"PATH": ""}, None).python == str(link)


def test_an_interpreter_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"no python3\.99 in the environment"):
        find_interpreter("python3.99", {"PATH": "/usr/bin"}, None)
    with pytest.raises(Refused, match="no python or python3 in"):
        find_interpreter(None, {"PATH": "/nonexistent"}, None)


def test_an_interpreter_that_does_not_run_is_refused_with_its_words(tmp_path: Path) -> None:
    broken = interpreter_at(tmp_path / "python", "#!/bin/sh\necho 'libpython is missing' >&2; exit 3\n")
    with pytest.raises(Refused, match="does not run: libpython is missing"):
        find_interpreter(str(broken), {"PATH": "/bin"}, None)
