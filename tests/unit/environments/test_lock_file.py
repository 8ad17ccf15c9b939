"""What a lock asks for on a kind of host, and what is refused by name."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterddp.environments.lock_file import LockedWheel, LockFile, content_digest, find_lock_file, required_wheels
from clusterddp.errors import LockError
from tests.wheels_made import KIND, make_wheel

HEAD = 'lock-version = "1.0"\ncreated-by = "test"\n'
SHA = "a" * 64
ARM = replace(KIND, machine="aarch64", libc_version=(2, 28))


def package(name: str, *wheels: str, more: str = "") -> str:
    listed = ", ".join(f'{{url = "https://x/{file}", hashes = {{sha256 = "{SHA}"}}}}' for file in wheels)
    return f'[[packages]]\nname = "{name}"\nversion = "1.0"\n{more}' + (f"wheels = [{listed}]\n" if wheels else "")


def pylock(folder: Path, *packages: str, head: str = HEAD, extras: str = "") -> LockFile:
    (folder / "pylock.toml").write_text(head + "".join(packages))
    return find_lock_file(f"pylock.toml{extras}", folder)


def test_each_kind_of_host_takes_its_own_wheel(tmp_path: Path) -> None:
    lock = pylock(
        tmp_path,
        package(
            "fast", "fast-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "fast-1.0-cp311-cp311-manylinux_2_28_aarch64.whl"
        ),
        package("pure", "pure-1.0-py3-none-any.whl"),
        package("windows", "windows-1.0-py3-none-any.whl", more="marker = \"sys_platform == 'win32'\"\n"),
    )
    assert [one.file for one in required_wheels(lock, KIND)] == [
        "fast-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "pure-1.0-py3-none-any.whl",
    ]  # fmt: skip
    assert required_wheels(lock, ARM)[0] == LockedWheel(
        name="fast",
        version="1.0",
        file="fast-1.0-cp311-cp311-manylinux_2_28_aarch64.whl",
        url="https://x/fast-1.0-cp311-cp311-manylinux_2_28_aarch64.whl",
        digests=frozenset({SHA}),
    )
    with pytest.raises(LockError, match=r"environment pylock.toml: No wheel .*'fast'.* \(for Python 3.12.1 on x86_64"):
        required_wheels(lock, replace(KIND, python="3.12.1"))


def test_a_wheel_that_is_locked_by_other_digests_alone_is_refused(tmp_path: Path) -> None:
    small = package("small", "small-1.0-py3-none-any.whl")
    (one,) = required_wheels(pylock(tmp_path, small.replace(SHA, SHA.upper())), KIND)
    assert one.digests == {SHA}
    for hashes in (f'{{sha512 = "{SHA}"}}', '{sha256 = "../../x"}'):
        with pytest.raises(LockError, match=r"small 1\.0: small-1\.0-py3-none-any\.whl has no sha256, only sha"):
            required_wheels(pylock(tmp_path, small.replace(f'{{sha256 = "{SHA}"}}', hashes)), KIND)


@pytest.mark.parametrize(
    "written", ["--hash=sha256:{}", "--hash sha256:{} --hash=sha256:{}", "--hash=sha512:00 --hash=sha256:{}"]
)
def test_requirements_allow_a_wheel_the_digests_of_their_lines_alone(tmp_path: Path, written: str) -> None:
    """An index, or a folder, may have another file by that name."""
    pytest.importorskip("uv", reason="uv resolves them")
    make_wheel(tmp_path / "store", "a_small", "2.0", {"small.py": ""})
    digests = [letter * 64 for letter in "AbCd"[: written.count("{}")]]
    lines = (
        f"A.small==2.0 ; python_version >= '3' \\\n  {written.format(*digests)}\n",
        "other==1 ; python_version < '3' --hash=sha256:" + SHA,
    )
    for option in ("-r", "-c"):
        (tmp_path / "more.txt").write_text("\n".join(lines))
        head = f"--no-index\n--find-links {tmp_path}/store\n{option} more.txt\n"
        (tmp_path / "requirements.txt").write_text(head + ("a-small==2.0\n" if option == "-c" else ""))
        (found,) = required_wheels(find_lock_file("requirements.txt", tmp_path), KIND)
        assert found.digests == {digest.lower() for digest in digests}


@pytest.mark.parametrize("written", ["--hash=sha512:00", "--hash=md5:00", "--hash=sha256:00", "--hash='sha256:{}'"])
def test_a_requirement_whose_hashes_are_no_sha256_is_refused(tmp_path: Path, written: str) -> None:
    (tmp_path / "requirements.in").touch()
    (tmp_path / "requirements.txt").write_text(f"small==2.0 {written.format(SHA)}\n")
    with pytest.raises(
        LockError, match=r"requirements.txt:1: small==2\.0 .*: has no sha256; make the lock again with one"
    ):
        required_wheels(find_lock_file("requirements.txt", tmp_path), KIND)


def test_extras_are_those_in_brackets(tmp_path: Path) -> None:
    more = package("small", "small-1.0-py3-none-any.whl", more="marker = \"'gpu' in extras\"\n")
    head = HEAD + 'extras = ["gpu"]\n'
    assert required_wheels(pylock(tmp_path, more, head=head), KIND) == []
    assert [one.name for one in required_wheels(pylock(tmp_path, more, head=head, extras="[gpu]"), KIND)] == ["small"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            '[packages.sdist]\nurl = "https://x/a-1.0.tar.gz"\nhashes = {sha256 = "b"}\n',
            "a 1.0 has no wheel for Python",
        ),
        ('[packages.vcs]\ntype = "git"\nurl = "https://x/a"\ncommit-id = "c"\n', "a 1.0 comes from a version control"),
        ('[packages.directory]\npath = "../a"\n', "a 1.0 is a folder of this machine"),
        ('[packages.archive]\nurl = "https://x/a.zip"\nhashes = {sha256 = "b"}\n', "a 1.0 is an archive"),
        (
            '[[packages.wheels]]\nurl = "https://x/a-1.0-cp311-cp311-win_amd64.whl"\nhashes = {sha256 = "b"}\n',
            r"environment pylock.toml: .*a.* \(for Python 3.11.7 on x86_64",
        ),
        ("[packages.nonsense]\n", "environment pylock.toml: "),
        ("[[", "environment pylock.toml: "),
    ],
)
def test_what_is_no_wheel_is_refused_by_name(tmp_path: Path, source: str, said: str) -> None:
    with pytest.raises(LockError, match=said):
        required_wheels(pylock(tmp_path, package("a", more=source)), KIND)


@pytest.mark.parametrize(
    "url",
    [
        "https://x/a-1.0.tar.gz",
        "https://x/a-1.0.tar.gz?a-1.0-py3-none-any.whl",
        "https://x/a-1.0.tar.gz#a-1.0-py3-none-any.whl",
        "https://x/a-1.0-py3-none-any.whl/",
        "git+https://x/a-1.0-py3-none-any.whl",
        "--log=/tmp/a-1.0-py3-none-any.whl",
        "http://[x/a-1.0-py3-none-any.whl",
        "file:///var/keys/id_ed25519",
    ],
)
def test_a_wheel_is_taken_from_a_url_of_its_own_name_alone(tmp_path: Path, url: str) -> None:
    """Of anything else pip would run the code, or read it as an option."""
    name, digest = "a-1.0-py3-none-any.whl", f'hashes = {{sha256 = "{SHA}"}}'
    wheels = f'wheels = [{{name = "{name}", url = "{url}", {digest}}}]\n'
    with pytest.raises(LockError, match="is not where a wheel of the name"):
        required_wheels(pylock(tmp_path, package("a", more=wheels)), KIND)


@pytest.mark.parametrize("version", ["", 'version = "1.0"\n'])
@pytest.mark.parametrize("place", ["url = 'https://x/a%2D{}?y'", "path = 'store/a-{}'"])
def test_a_wheel_that_is_named_by_its_place_is_a_wheel(tmp_path: Path, place: str, version: str) -> None:
    """Locks list it as an archive."""
    fitting = f"1.0-cp311-cp311-manylinux_2_28_{KIND.machine}.whl"
    archive = f'[packages.archive]\n{place}\nhashes = {{sha256 = "{SHA}"}}\n'
    text = package("a", more=archive).replace('version = "1.0"\n', version)
    (found,) = required_wheels(pylock(tmp_path, text.replace("{}", fitting)), KIND)
    assert (found.version, found.file, [*found.digests]) == ("1.0", f"a-{fitting}", [SHA])
    for other in (fitting.replace("cp311", "cp312"), fitting.replace("1.0", "2.0") if version else "b", "b-1.whl"):
        with pytest.raises(LockError, match=r"environment pylock\.toml: .*a"):
            required_wheels(pylock(tmp_path, text.replace("{}", other)), KIND)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-r=more.in", ""),
        ("--config-settings=x", "cannot be understood"),
        ("-emore", "cannot be understood"),
        ("-r more\0.in", "cannot be understood"),
        ("a @ http://[x/a-1.0-py3-none-any.whl", "is no wheel"),
        ("numpy", "is not pinned to one version"),
        ("numpy>=1.0", "is not pinned to one version"),
        ("numpy==1.*", "is not pinned to one version"),
        ("-e ./pkg", "a folder or a repository cannot be locked"),
        ("./pkg", "a folder or a repository cannot be locked"),
        ("git+https://x/a.git", "a folder or a repository cannot be locked"),
        ("a @ git+https://x/a.git", "is no wheel"),
        ("a @ https://x/a-1.0.tar.gz", "is no wheel"),
        ("what is this", "cannot be understood"),
        ("\u00a0", "cannot be understood"),
        ("\f", "cannot be understood"),
    ],
)
def test_a_requirement_that_is_no_lock_is_refused_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "requirements.txt").write_text("-r more.txt\n")
    (tmp_path / "more.txt").write_text(f"# a comment\nsmall==1.0 \\\n  --hash=sha256:{SHA}\n{line}\n")
    with pytest.raises(LockError) as refused:
        required_wheels(find_lock_file("requirements.txt", tmp_path), KIND)
    expected = f"more.txt:4: {line}: {said}" if said else f"{tmp_path}/more.in: cannot be read"
    assert refused.value.message.startswith(f"environment requirements.txt: {expected}")


@pytest.mark.parametrize("option", ["-r", "-c"])
@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://x/${TOKEN}/simple",
        "a @ https://x/${TOKEN}/a-1.0-py3-none-any.whl",
        "a @ \\\nhttps://x/${TOKEN}/a-1.0-py3-none-any.whl",
        "-c ${TOKEN}.txt",
        "small==1.0 # \u2028 ${TOKEN}",
    ],
)
def test_a_lock_that_names_a_variable_is_refused_wherever_that_stands(tmp_path: Path, option: str, line: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"# ${{none}}\nsmall==1.0\n{option} more.txt\n")
    (tmp_path / "more.txt").write_text(line + "\n")
    with pytest.raises(LockError, match=r"more\.txt:[12]: a lock names no variable \(\$\{…\}\); put the value there"):
        required_wheels(find_lock_file("requirements.txt", tmp_path), KIND)


@pytest.mark.parametrize(
    "lines",
    [
        "-c http://x/c.txt",
        "-c 'c.txt'",
        "-c c\\.txt",
        "-c c.txt#d",
        "-c c.txt\u2003",
        "-c c.txt\u2028",
        "--no-index -c c.txt",
        "--index-url http://x \\\n-c c.txt",
        "small==1.0 --hash=sha256:0 \\\n-c c.txt",
    ],
)
def test_lines_that_uv_might_read_otherwise_are_refused(tmp_path: Path, lines: str) -> None:
    (tmp_path / "requirements.txt").write_text(lines)
    for name in ("c.txt", "'c.txt'", "c\\.txt", "c.txt#d", "c.txt\u2003"):
        (tmp_path / name).touch()
    (tmp_path / "http:" / "x").mkdir(parents=True)
    (tmp_path / "http:" / "x" / "c.txt").touch()
    with pytest.raises(LockError, match="cannot be understood"):
        required_wheels(find_lock_file("requirements.txt", tmp_path), KIND)


def test_uv_is_configured_by_the_user_and_not_by_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uv", reason="uv resolves them")
    wheel = make_wheel(tmp_path / "store", "small", "2.0", {"small.py": ""})
    project, own = tmp_path / "project", tmp_path / "own" / "uv" / "uv.toml"
    project.mkdir()
    written = project / "cache", project / "pylock.planted.toml"
    text = '[tool.uv]\ncache-dir = "{}"\n[tool.uv.pip]\noutput-file = "{}"\n'.format(*written)
    (project / "pyproject.toml").write_text(text)
    (project / "requirements.txt").write_text("small==2.0\n")
    own.parent.mkdir(parents=True)
    own.write_text(f'no-index = true\nfind-links = ["{tmp_path}/store"]\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    (found,) = required_wheels(find_lock_file("requirements.txt", project), KIND)
    assert found.url == wheel.as_uri()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    (project / "requirements.txt").write_text(f"--no-index\n--find-links {tmp_path}/store\nsmall==2.0\n")
    assert required_wheels(find_lock_file("requirements.txt", project), KIND) == [found]
    assert not any(path.exists() for path in written)


def test_uv_runs_no_code_of_the_project(tmp_path: Path) -> None:
    pytest.importorskip("uv", reason="uv resolves them")
    python, marker = tmp_path / ".venv" / "bin" / "python", tmp_path / "ran"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho x >> {marker}\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    (tmp_path / ".venv" / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    source = tmp_path / "evil"
    source.mkdir()
    backend = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (source / "pyproject.toml").write_text(backend)
    (source / "backend.py").write_text(f"open({str(marker)!r}, 'a').write('built')\n")
    make_wheel(tmp_path / "store", "small", "2.0", {"small.py": ""})
    for constraint in ("small<3\n", f"small @ {source.as_uri()}\n"):
        (tmp_path / "c.txt").write_text(constraint)
        (tmp_path / "requirements.txt").write_text(f"--no-index\n--find-links {tmp_path}/store\n-c c.txt\nsmall==2.0\n")
        with contextlib.suppress(LockError):
            required_wheels(find_lock_file("requirements.txt", tmp_path), KIND)
        assert not marker.exists()


def test_requirements_are_resolved_by_uv_alone(tmp_path: Path) -> None:
    pytest.importorskip("uv", reason="uv resolves them")
    wheel = make_wheel(tmp_path / "store", "small", "2.0", {"small.py": ""})
    (tmp_path / "more.txt").write_text("small==2.0\nold==1.0 ; python_version < '3'\n")
    (tmp_path / "requirements.txt").write_text(f"--no-index\n--find-links {tmp_path}/store\n-r more.txt\n")
    (found,) = required_wheels(find_lock_file("requirements.txt", tmp_path), KIND)
    assert (found.name, found.version, found.url) == ("small", "2.0", wheel.as_uri())
    (tmp_path / "more.txt").write_text("gone==2.0\n")
    with pytest.raises(LockError, match="gone"):
        required_wheels(find_lock_file("requirements.txt", tmp_path), KIND)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("uv.lock", "there is no .*/uv.lock; make it with `uv init --bare && uv lock`"),
        ("uv.lock[a", "cannot be understood"),
        ("r.txt[gpu]", "requirements have no extras"),
    ],
)
def test_a_lock_that_is_not_there_or_cannot_be_meant_is_refused(tmp_path: Path, written: str, said: str) -> None:
    (tmp_path / "r.txt").write_text("")
    with pytest.raises(LockError, match=said):
        find_lock_file(written, tmp_path)


def test_without_uv_its_installation_is_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterddp.environments.lock_file.find_uv", lambda: None)
    (tmp_path / "uv.lock").write_text("version = 1\n")
    with pytest.raises(LockError, match=r"needs uv on this machine; `pip install 'clusterddp"):
        required_wheels(find_lock_file("uv.lock", tmp_path), KIND)


def test_a_change_of_an_included_file_is_a_change_of_the_lock(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("-r a.txt\n")
    (tmp_path / "a.txt").write_text("-r r.txt\n")
    digests = set[Any]()
    for text in ("", "x==1\n"):
        (tmp_path / "a.txt").write_text(f"-r r.txt\n{text}")
        digests.add(content_digest(find_lock_file("r.txt", tmp_path)))
    assert len(digests) == 2


def test_files_that_include_each_other_by_many_ways_are_each_read_once(tmp_path: Path) -> None:
    for folder in ("b", "c"):
        (tmp_path / folder).mkdir()
    for number in range(40):
        (tmp_path / f"r{number}.txt").write_text(f"-r b/../r{number + 1}.txt\n-r c/../r{number + 1}.txt\n")
    (tmp_path / "r40.txt").write_text("-c r41.txt\n-r r41.txt\n")
    (tmp_path / "r41.txt").write_text("x>=1\n")
    lock = find_lock_file("r0.txt", tmp_path)
    assert content_digest(lock)
    with pytest.raises(LockError, match=r"r41\.txt:1: x>=1: is not pinned"):
        required_wheels(lock, KIND)


def test_a_link_includes_the_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "common").write_text("-r own.txt\n")
    for folder, text in (("a", "x==1\n"), ("b", "y>=1\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "r.txt").symlink_to("../common")
        (tmp_path / folder / "own.txt").write_text(text)
    (tmp_path / "r.txt").write_text("-r a/r.txt\n-r b/r.txt\n")
    with pytest.raises(LockError, match=r"own\.txt:1: y>=1: is not pinned"):
        required_wheels(find_lock_file("r.txt", tmp_path), KIND)
