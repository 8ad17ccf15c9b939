"""Which values are secret by their names: in JSON, among the words of a command, in text."""

from __future__ import annotations

import time

import pytest

from clusterddp.remote.shared.text.secret_names import hide_assigned, hide_named, is_secret, values_by_name

HIDDEN = "********"


@pytest.mark.parametrize("name", ["HF_TOKEN", "api-key", "ansible_become_pass", "AWS_SECRET_ACCESS_KEY", "dbPassword"])
def test_a_name_says_that_its_value_is_secret(name: str) -> None:
    assert is_secret(name, "abc")
    assert not is_secret(name, None)


@pytest.mark.parametrize("name", ["ansible_ssh_private_key_file", "TOKENIZERS_DIR", "PATH", "clusterddp_secrets"])
def test_a_path_and_a_list_of_names_are_shown(name: str) -> None:
    assert not is_secret(name, "/home/alice/x")


def test_values_are_found_at_any_depth() -> None:
    value = {
        "env": {"API_KEY": "one", "PLAIN": "two"},
        "tokens": ["three", {"x": 4}],
        "secrets": ["HF_TOKEN"],
        "clusterddp_secrets": ["HF_TOKEN"],
        "argv": ["--lr", "3", "--api-key", "five", "--env=A=six", "token=seven"],
        "key": None,
        "password": True,
    }
    assert sorted(values_by_name(value)) == ["4", "five", "one", "seven", "six", "three"]


def test_they_are_hidden_where_they_stand() -> None:
    value = {
        "env": {"API_KEY": "one", "N": 2},
        "argv": ("a", "--api-key", "five"),
        "secrets": ["HF_TOKEN"],
        "list": [1],
    }
    assert hide_named(value) == {
        "env": {"API_KEY": HIDDEN, "N": 2},
        "argv": ["a", "--api-key", HIDDEN],
        "secrets": ["HF_TOKEN"],
        "list": [1],
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("export HF_TOKEN=hf_abcdef; x", f"export HF_TOKEN={HIDDEN}; x"),
        ("{'WANDB_API_KEY': 'abcdefgh', 'LR': '1'}", f"{{'WANDB_API_KEY': '{HIDDEN}', 'LR': '1'}}"),
        ('"api_key": "abcdefgh"', f'"api_key": "{HIDDEN}"'),
        ("password: abcdefgh", f"password: {HIDDEN}"),
        ("TOKEN=abcdefgh SECRET: abcdefgh", f"TOKEN={HIDDEN} SECRET: {HIDDEN}"),
        ('PASSWORD="correct horse battery"', f'PASSWORD="{HIDDEN}"'),
        ("DB_PASSWORD=Ab1&Zq9)k2xx", f"DB_PASSWORD={HIDDEN}"),
        ("Namespace(hf_token='abcdefgh', lr=1)", f"Namespace(hf_token='{HIDDEN}', lr=1)"),
        (r'{"text": "{\"HF_TOKEN\": \"abc defgh\"}"}', rf'{{"text": "{{\"HF_TOKEN\": \"{HIDDEN}\"}}"}}'),
        (r'"{\\\"api_key\\\": \\\"abcdefgh\\\"}"', rf'"{{\\\"api_key\\\": \\\"{HIDDEN}\\\"}}"'),
        (r'"said \"TOKEN=abcdefgh\" twice"', rf'"said \"TOKEN={HIDDEN}\" twice"'),
        (r'"set:\nTOKEN=abcdefgh"', rf'"set:\nTOKEN={HIDDEN}"'),
        ("HF_TOKEN = b'abcdefgh'", f"HF_TOKEN = b'{HIDDEN}'"),
        ("b = 5; TOKEN=bring-abcdefgh", f"b = 5; TOKEN={HIDDEN}"),
        (r"DB_PASSWORD='correct horse, battery\\' x", f"DB_PASSWORD='{HIDDEN}' x"),
        (r"DB_PASSWORD='correct horse, battery\' x", f"DB_PASSWORD='{HIDDEN}' x"),
        (r'{"db_password": "correct horse battery\\"}', f'{{"db_password": "{HIDDEN}"}}'),
        (r'"{\"db_password\": \"correct horse battery\\\\\"}"', rf'"{{\"db_password\": \"{HIDDEN}\"}}"'),
        (r'{"db_password": "a\"b c, defgh", "lr": "1"}', f'{{"db_password": "{HIDDEN}", "lr": "1"}}'),
        ("""DB_PASSWORD="it's a secret" x""", f'DB_PASSWORD="{HIDDEN}" x'),
        ("password='', user='abcdefgh'", None),
        ("KeyError: 'attention_mask'", None),
        ("tokens: 1234567 keys=abcdefgh", None),
        ("MAX_TOKENS=4096000 KEY_RATE=0.0001234", None),
        ("SSH_KEY_FILE=/home/alice/id", None),
        ("TOKEN=short", None),
    ],
)
def test_text_that_sets_or_prints_a_secret_by_name(text: str, shown: str | None) -> None:
    assert hide_assigned(text) == (text if shown is None else shown)


@pytest.mark.parametrize(
    "part",
    [
        "KEY",
        "A",
        "a_",
        "PASSWORD=",
        "api_key",
        "TOKEN =",
        "A_KEY",
        "TOKEN=\\",
        'TOKEN\\\\\\":b',
        "TOKEN=b",
        "\\nTOKEN='abcdefg\\",
        "TOKEN='abcdefg\\'",
        "TOKEN=\"abcdefg'TOKEN='",
    ],
)
def test_a_line_of_a_megabyte_takes_no_hours(part: str) -> None:
    began = time.process_time()
    hide_assigned(part * ((1 << 20) // len(part)))
    assert time.process_time() - began < 5
