"""known_hosts read as OpenSSH reads it, and appended to, never rewritten."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import stat
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterddp.errors import HostKeyError, UsageError
from clusterddp.hosts.ssh.known_hosts import KnownHosts, KnownKey, PresentedKey, append_known_hosts, unknown_key_error

if TYPE_CHECKING:
    from pathlib import Path

BLOB, OTHER = (base64.b64encode(text).decode() for text in (b"the key", b"another key"))


def shown(*names: str, blob: str = BLOB, kind: str = "ssh-ed25519") -> PresentedKey:
    return PresentedKey(host="gpu01", names=names or ("gpu01",), type=kind, blob=blob)


def hashed(name: str) -> str:
    salt = b"0123456789abcdef0123"
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "known_hosts"


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ("gpu01", ["gpu01"]),
        ("other,gpu01", ["gpu01"]),
        ("gpu*", ["gpu01"]),
        ("gpu0?", ["gpu01"]),
        ("GPU01", ["gpu01"]),
        ("[gpu01]:2222", ["[gpu01]:2222", "gpu01"]),
        ("gpu01", ["[gpu01]:2222", "gpu01"]),
        (hashed("gpu01"), ["gpu01"]),
        (hashed("[gpu01]:2222"), ["[gpu01]:2222", "gpu01"]),
    ],
)
def test_a_listed_key_is_known(file: Path, patterns: str, names: list[str]) -> None:
    file.write_text(f"# comment\n\n{patterns}\tssh-ed25519  {BLOB} a comment\n")
    assert KnownHosts().check(shown(*names), [file])


def test_a_line_of_whole_names_is_found_without_a_look_at_those_of_other_hosts(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []
    matches = KnownKey.matches

    def noted(key: KnownKey, name: str) -> bool:
        looked_at.append(key.patterns)
        return matches(key, name)

    monkeypatch.setattr(KnownKey, "matches", noted)
    lines = ["gpu*,!gpu03 first", "gpu01,GPU01 second", "gpu02 third", f"{hashed('gpu01')} fourth", "gpu01 fifth"]
    file.write_text("".join(f"{line} {BLOB}\n" for line in lines))
    known = KnownHosts()
    assert known.types([file], ["gpu01"]) == ("first", "second", "fourth", "fifth")
    assert known.types([file], ["gpu02"]) == ("first", "third")
    assert known.types([file], ["gpu03"]) == ()
    assert looked_at == ["gpu*,!gpu03", hashed("gpu01")] * 3


@pytest.mark.parametrize(
    "line",
    [
        f"gpu02 ssh-ed25519 {BLOB}",
        f"gpu*,!gpu01 ssh-ed25519 {BLOB}",
        f"!gpu01,gpu* ssh-ed25519 {BLOB}",
        f"[gpu01]:2222 ssh-ed25519 {BLOB}",
        f"gp[u]01 ssh-ed25519 {BLOB}",
        f"@cert-authority * ssh-ed25519 {BLOB}",
        f"@unheard-of gpu01 ssh-ed25519 {BLOB}",
        "gpu01 ssh-ed25519",
        "|1|broken ssh-ed25519 " + BLOB,
        "|1|!!|?? ssh-ed25519 " + BLOB,
    ],
)
def test_a_line_that_does_not_vouch_is_passed_over(file: Path, line: str) -> None:
    file.write_text(f"{line}\n\xff\n")
    assert not KnownHosts().check(shown(), [file, file.with_name("missing")])


def test_a_changed_key_is_refused_with_its_place_and_the_remedy(file: Path) -> None:
    file.write_text(f"# one\nx ssh-rsa AAAA\ngpu01 ssh-ed25519 {OTHER}\n")
    with pytest.raises(HostKeyError) as caught:
        KnownHosts().check(shown(), [file])
    assert f"the known one is in {file}:3" in str(caught.value)
    assert f"ssh-keygen -f {file} -R gpu01" in caught.value.remedy


def test_a_host_known_by_another_type_of_key_has_changed(file: Path) -> None:
    file.write_text(f"gpu01 ssh-rsa {OTHER}\n")
    with pytest.raises(HostKeyError, match="has changed"):
        KnownHosts().check(shown(), [file])


def test_one_of_several_known_keys_is_enough(file: Path) -> None:
    file.write_text(f"gpu01 ssh-ed25519 {OTHER}\ngpu01 ssh-ed25519 {BLOB}\n")
    assert KnownHosts().check(shown(), [file])


def test_another_key_under_the_plain_name_is_another_sshd(file: Path) -> None:
    file.write_text(f"gpu01 ssh-ed25519 {OTHER}\n")
    assert not KnownHosts().check(shown("[gpu01]:2222", "gpu01"), [file])


def test_the_plain_name_counts_only_where_the_exact_one_has_no_key(file: Path) -> None:
    file.write_text(f"[gpu01]:33022 ssh-ed25519 {OTHER}\ngpu01 ssh-ed25519 {BLOB}\n")
    with pytest.raises(HostKeyError, match=rf"has changed.*{file}:1"):
        KnownHosts().check(shown("[gpu01]:33022", "gpu01"), [file])
    file.write_text(f"[gpu01]:33022 ssh-rsa {OTHER}\ngpu01 ssh-ed25519 {BLOB}\n")
    with pytest.raises(HostKeyError, match="has changed"):
        KnownHosts().check(shown("[gpu01]:33022", "gpu01"), [file])


def test_a_key_revoked_under_the_plain_name_is_refused_on_every_port(file: Path) -> None:
    file.write_text(f"[gpu01]:33022 ssh-ed25519 {BLOB}\n@revoked gpu01 ssh-ed25519 {BLOB}\n")
    with pytest.raises(HostKeyError, match="is revoked"):
        KnownHosts().check(shown("[gpu01]:33022", "gpu01"), [file])


@settings(max_examples=200)
@given(text=st.text(alphabet=st.sampled_from("gpu01*?![]:2222 ,|1\n\t#@revokedcert-authority=ssh-ed25519AA\x00\udcff")))
def test_whatever_stands_in_a_file_a_key_is_known_unknown_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.mktemp("known") / "known_hosts"
    file.write_bytes(text.encode(errors="surrogateescape"))
    known = KnownHosts()
    names = ("[gpu01]:2222", "gpu01")
    known.types([file], names)
    known.is_known_only_by_authority([file], names)
    try:
        known.check(shown(*names), [file])
    except HostKeyError as error:
        assert "gpu01" in str(error)  # noqa: PT017 - any answer is right


def test_a_revoked_key_is_refused_even_when_listed(file: Path) -> None:
    file.write_text(f"gpu01 ssh-ed25519 {BLOB}\n@revoked * ssh-ed25519 {BLOB}\n")
    with pytest.raises(HostKeyError, match=rf"is revoked by {file}:2"):
        KnownHosts().check(shown(), [file])


def test_known_types_come_first_in_a_negotiation(file: Path) -> None:
    file.write_text(f"gpu01 ssh-rsa {BLOB}\n@cert-authority gpu01 ssh-ed25519 {BLOB}\n")
    assert KnownHosts().types([file], ["[gpu01]:2222", "gpu01"]) == ("ssh-rsa",)


def test_a_host_known_only_by_its_authority_is_told_apart(file: Path) -> None:
    file.write_text(f"@cert-authority *.lan ssh-ed25519 {BLOB}\nb.lan ssh-ed25519 {BLOB}\n")
    known = KnownHosts()
    assert known.is_known_only_by_authority([file], ["a.lan"])
    assert not known.is_known_only_by_authority([file], ["b.lan"])
    assert not known.is_known_only_by_authority([file], ["elsewhere"])


def test_the_fingerprint_is_the_one_ssh_prints() -> None:
    expected = base64.b64encode(hashlib.sha256(b"the key").digest()).decode().rstrip("=")
    assert shown().fingerprint == f"ssh-ed25519 SHA256:{expected}"


def test_an_appended_key_joins_the_bytes_that_were_there(file: Path) -> None:
    file.write_bytes(b"\xff old line without an end")
    known = KnownHosts()
    assert not known.check(shown(), [file])
    known.append(shown(), file, also_check=[file])
    assert file.read_bytes() == b"\xff old line without an end\n" + f"gpu01 ssh-ed25519 {BLOB}\n".encode()
    assert known.check(shown(), [file])


def test_a_new_file_is_private(tmp_path: Path) -> None:
    file = tmp_path / "new" / "known_hosts"
    KnownHosts().append(shown(), file, also_check=[file])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_many_at_once_append_a_key_once(file: Path) -> None:
    threads = [
        threading.Thread(target=KnownHosts().append, args=(shown(f"gpu{n % 4}"), file), kwargs={"also_check": [file]})
        for n in range(24)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(file.read_text().splitlines()) == [f"gpu{n} ssh-ed25519 {BLOB}" for n in range(4)]


def test_a_key_is_not_appended_beside_another(file: Path) -> None:
    file.write_text(f"gpu01 ssh-ed25519 {OTHER}\n")
    with pytest.raises(HostKeyError, match="has changed"):
        KnownHosts().append(shown(), file, also_check=[file])
    assert file.read_text() == f"gpu01 ssh-ed25519 {OTHER}\n"


def test_the_user_s_yes_records_every_host_of_the_table_once(file: Path) -> None:
    errors = [unknown_key_error(shown(name), file) for name in ("gpu01", "gpu02", "gpu01")]
    append_known_hosts(errors)
    assert file.read_text() == f"gpu01 ssh-ed25519 {BLOB}\ngpu02 ssh-ed25519 {BLOB}\n"


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_an_error_not_an_empty_one(file: Path) -> None:
    file.write_text("")
    file.chmod(0)
    with pytest.raises(UsageError, match="cannot read the known host keys"):
        KnownHosts().check(shown(), [file])


def test_a_folder_in_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the known host keys"):
        KnownHosts().check(shown(), [tmp_path])
