"""What is written about the project is true: commands, options, links, inventories, code, and no stranger's paths."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import shlex
import subprocess
from dataclasses import fields
from pathlib import Path

import click
import pytest

import clusterddp
from clusterddp.api.cluster import Cluster
from clusterddp.cli.main import COMMANDS
from clusterddp.hosts.ssh import kept
from clusterddp.inventory import built_in, load
from clusterddp.inventory.variables.variable_names import OURS, USED
from clusterddp.logs.lines import LogLine
from clusterddp.project import consent, user_folders
from clusterddp.project.project_folder import FOLDER
from clusterddp.remote.control import connection
from clusterddp.remote.shared.wire import frames
from clusterddp.runs.run import Run
from tests import api_page, screens
from tests.unit.cli_help import command, options

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[!.]*/README.md")])
# Options of other programs that our pages speak of.
FOREIGN = {
    "--cached",  # of git
    "--upgrade",  # of pip
    "--version", "--list", "--yaml", "--output", "--steps", "--check", "--diff", "--strict", "--role", "--shm-size",
    "--require-hashes",
    "--logdir", "--host", "--port",  # of TensorBoard
    "--exclusive", "--gpus-per-node", "--nodelist", "--nodes", "--ntasks-per-node", "--overlap", "--label",
    "--pty", "--requeue", "--reservation", "--time",
}  # fmt: skip
# Options of the tools that people come from.
COMING_FROM = ROOT / "docs/coming-from"
OF_OTHERS = {
    "--config-file", "--enable-cpu-affinity", "--gpu-ids", "--machine-rank", "--main-process-ip",
    "--main-process-port", "--mixed-precision", "--no-python", "--num-machines", "--num-processes",  # accelerate
    "--forks",  # ansible
    "--copy", "--dest", "--pick", "--rcopy", "--sudo", "--topology",  # clush
    "--bind-cores-to-rank", "--deepspeed", "--deepspeed-config", "--elastic-training", "--enable-each-rank-log",
    "--exclude", "--hostfile", "--include", "--num-gpus", "--num-nodes",  # deepspeed
    "--autotune", "--host-discovery-script", "--max-np", "--min-np", "--mpi-args", "--network-interfaces",
    "--output-filename", "--stall-check-shutdown-time-seconds",  # horovod
    "--address", "--head", "--working-dir",  # ray
    "--infra",  # skypilot
    "--container-image", "--dependency", "--export", "--het-group", "--me", "--multi-prog", "--signal",  # srun
    "--log-dir", "--master-addr", "--master-port", "--node-rank", "--redirects", "--standalone", "--tee",  # torchrun
}  # fmt: skip
OF_TORCHX = {
    "--cpu", "--gpu", "--image", "--max-retries", "--metadata", "--mounts", "--msg", "--rdzv-conf", "--rdzv-port",
    "--regex", "--script", "--streams", "--tee", "--workspace", "--dryrun", "--env", "--lr", "--mem", "--name",
}  # fmt: skip
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z_-]*[a-z]")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def shown(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return [body for name, body in _FENCE.findall(text_of(page)) if name == language]


ALL_OPTIONS = set[str]().union(*(options(name) for name in COMMANDS))


def listed_options(name: str) -> set[str]:
    """What the page's table of options has in its first column."""
    rows = re.findall(r"^\| (`-.*?) (?<!\\)\|", text_of(ROOT / "docs" / f"{name}.md"), re.MULTILINE)
    return {word for row in rows for word in re.findall(r"(?<=`)--?[a-zA-Z][a-z-]*", row)}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_page_with_exactly_its_options(name: str) -> None:
    assert listed_options(name) == options(name)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_synopsis_options_exit_codes_and_an_example(name: str) -> None:
    text = text_of(ROOT / "docs" / f"{name}.md")
    assert text.startswith(f"# clusterddp {name}\n")
    assert f"\n    clusterddp {name} [OPTIONS]" in text
    assert re.findall(r"^## (Options|Exit codes|Example)$", text, re.MULTILINE) == ["Options", "Exit codes", "Example"]
    assert f"clusterddp {name}" in text.split("\n## Example\n")[1]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_no_page_names_an_option_that_does_not_exist(page: Path) -> None:
    named = {word.replace("_", "-") for word in _OPTION.findall(text_of(page))}
    of_torchrun = {"--local-rank", "--nnodes", "--rdzv-id", "--rdzv-backend", "--rdzv-endpoint", "--max-restarts"}
    of_examples = {word for path in ROOT.glob("examples/**/*.py") for word in _OPTION.findall(text_of(path))}
    of_others = OF_OTHERS if page.parent == COMING_FROM else OF_TORCHX if page.name == "torchx.md" else set[str]()
    assert named - ALL_OPTIONS - FOREIGN - of_torchrun - of_examples - of_others == set()


def test_every_option_of_another_tool_is_on_a_page_for_who_comes_from_it() -> None:
    named = {word.replace("_", "-") for page in COMING_FROM.glob("*.md") for word in _OPTION.findall(text_of(page))}
    assert not OF_OTHERS - named
    assert not OF_OTHERS & (ALL_OPTIONS | FOREIGN)


def spoken(text: str) -> list[str]:
    """Return the `clusterddp` command lines in the inline code of a page; they may contain placeholders."""
    inline = [code.replace("\\|", "|") for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", _FENCE.sub("", text))]
    named = [f"clusterddp {code}" for code in inline if re.match(rf"({'|'.join(COMMANDS)}) --?[a-z]", code)]
    return [*(code for code in inline if re.search(r"(^|\| )clusterddp ", code)), *named]


def typed(text: str) -> list[str]:
    """Return the `clusterddp` command lines in the console blocks of a page."""
    shown = "\n".join(body for name, body in _FENCE.findall(text) if name == "console")
    return re.findall(r"^\$ (.*\bclusterddp .*)$", shown, re.MULTILINE)


def commands_in(line: str) -> list[list[str]]:
    """Split a shell command line; return the arguments of each call of `clusterddp` in it."""
    split = shlex.shlex(re.sub(r" \d?>>? *\S+", "", line), posix=True, punctuation_chars="|;&()")
    split.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in split:
        if set(word) <= set("|;&()"):
            commands.append([])
        elif commands[-1] or not re.match(r"[A-Za-z_]+=", word):
            commands[-1].append(word)
    return [words[1:] for words in commands if words[:1] == ["clusterddp"] and words[1:]]


def fault(words: list[str], *, complete: bool) -> str:
    """Parse a command's arguments with click; return its error message, or an empty text if they are valid."""
    name, *args = words[2:] if words[:1] == ["-C"] else words
    if words in (["COMMAND", "--help"], ["--help"], ["--version"]):
        return ""
    if name not in COMMANDS:
        return "no such command"
    asked = command(name)
    context = click.Context(asked, info_name=name, **asked.context_settings)
    try:
        values, rest, _ = asked.make_parser(context).parse_args([*args])
        for parameter in asked.params:
            value = values.get(parameter.name or "")
            if isinstance(parameter.type, click.Choice) and isinstance(value, str):
                parameter.type.convert(value, parameter, context)
            if complete and parameter.required and parameter.value_is_missing(value):
                return f"{parameter.name} is missing"
    except click.BadOptionUsage as error:  # an option that is spoken of has no value
        return "" if error.option_name == args[-1] and not complete else error.format_message()
    except click.UsageError as error:
        return error.format_message()
    return f"{rest} is too much" if rest and not context.allow_extra_args else ""


def faults(line: str, *, complete: bool) -> list[str]:
    said = [fault(words, complete=complete) for words in commands_in(line)]
    return [f"{line}: {one}" for one in said if one]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_command_line_on_a_page_is_one_that_the_program_takes(page: Path) -> None:
    text = text_of(page)
    said = [fault for line in spoken(text) for fault in faults(line, complete=False)]
    assert [*said, *(fault for line in typed(text) for fault in faults(line, complete=True))] == []


def test_pages_have_command_lines_to_check() -> None:
    text = "".join(map(text_of, PAGES))
    assert len(spoken(text)) > 150
    assert len(typed(text)) > 60


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("clusterddp run --nonodes 2 train.py", "No such option"),
        ("clusterddp stpo night", "no such command"),
        ("clusterddp run --rdzv-backend etcd train.py", "'etcd' is not one of"),
        ("id=$(clusterddp signal --limit gpu00 night)", "signal is missing"),
        ("clusterddp shell gpu00 gpu01", "too much"),
        ("cat x | clusterddp logs --tail", "requires an argument"),
        ("K=1 clusterddp runs --oldest | head --nonsense", "No such option"),
        ("fab -H gpu00 clusterddp exec --no", ""),
        ("clusterddp runs --last 3 2>/dev/null | head --nonsense", ""),
    ],
)
def test_a_line_that_the_program_does_not_take_is_found(line: str, said: str) -> None:
    assert [line] * bool(said) == [one.partition(": ")[0] for one in faults(line, complete=True) if said in one]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_no_page_names_a_command_that_does_not_exist(page: Path) -> None:
    named = re.findall(r"(?:`|^\$ |^    )clusterddp ([a-z]+)", text_of(page), re.MULTILINE)
    assert set(named) <= set(COMMANDS)


def test_every_page_is_in_the_table_of_contents() -> None:
    links = re.findall(r"\]\(([\w-]+)\.md\)", text_of(ROOT / "docs/README.md"))
    assert sorted(links) == sorted(page.stem for page in ROOT.glob("docs/*.md") if page.stem != "README")
    assert set(COMMANDS) <= set(links)
    assert "](docs/README.md)" in text_of(ROOT / "README.md")


def test_every_page_for_who_comes_from_another_tool_is_linked() -> None:
    links = re.findall(r"\]\(coming-from/([\w-]+)\.md\)", text_of(ROOT / "docs/coming-from.md"))
    assert sorted(links) == sorted(page.stem for page in COMING_FROM.glob("*.md"))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    dead = []
    for link in re.findall(r"\[[^]]*\]\(([^)\s]+)\)", text_of(page)):
        target, _, anchor = link.partition("#")
        if not link.startswith(("http://", "https://")):
            file = page.parent / target if target else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                dead.append(link)
    assert dead == []


def test_every_scene_has_its_pictures_and_they_load_nothing_from_elsewhere() -> None:
    pictures = {path.stem: path.read_text(encoding="utf-8") for path in ROOT.glob("docs/screens/*.svg")}
    assert set(pictures) == {f"{scene.name}-{width}" for scene in screens.SCENES for width in scene.widths}
    assert [name for name, text in pictures.items() if re.search(r"url\((?!#)|href=|@import", text)] == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("inventories/*.yaml")), ids=shown)
def test_an_inventory_to_copy_loads(path: Path) -> None:
    assert load(path).nodes


def test_the_built_in_inventory_is_the_one_to_read() -> None:
    assert [host.name for host in built_in().hosts] == [
        host.name for host in load(ROOT / "inventories/local.yaml").hosts
    ]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_an_inventory_on_a_page_loads(page: Path, tmp_path: Path) -> None:
    for number, body in enumerate(blocks(page, "yaml")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(body, encoding="utf-8")
        assert load(path).nodes


def test_the_inventory_of_the_readme_has_the_six_lines_it_claims() -> None:
    (inventory,) = blocks(ROOT / "README.md", "yaml")
    assert "in six lines" in text_of(ROOT / "README.md")
    assert len(inventory.splitlines()) == 6


def test_the_readme_shows_the_main_job_in_its_order() -> None:
    text = text_of(ROOT / "README.md")
    steps = ["pip install", "$ clusterddp up", "$ clusterddp run", "detached;", "logs --follow", "$ clusterddp stop"]
    places = [text.index(step) for step in steps]
    assert places == sorted(places)
    assert text.index("make demo") < text.index("make test")


def test_every_variable_of_an_inventory_is_described() -> None:
    text = text_of(ROOT / "docs/inventory.md")
    described = set(re.findall(r"`((?:clusterddp|ansible|ssh)_\w+)`", text))
    assert described >= USED
    reserved_or_unread = {"clusterddp_sync", "clusterddp_requirements", "clusterddp_container"}
    assert {name for name in described if name.startswith("clusterddp_")} - OURS == reserved_or_unread


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_python_on_a_page_compiles_and_imports_what_exists(page: Path) -> None:
    for body in blocks(page, "python"):
        tree = ast.parse(body)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("clusterddp"):
                module = importlib.import_module(node.module or "")
                submodules = {path.stem for path in Path(inspect.getfile(module)).parent.glob("*.py")}
                assert all(hasattr(module, alias.name) or alias.name in submodules for alias in node.names)


def test_the_tables_of_the_api_are_those_of_the_code() -> None:
    page = api_page.PAGE.read_text(encoding="utf-8")
    assert api_page.current(page) == page, "`python -m tests.api_page` writes them anew"


def test_every_method_on_the_page_of_the_api_exists() -> None:
    text = text_of(ROOT / "docs/python-api.md")
    used = set(re.findall(r"\bcluster\.(\w+)\(", text)), set(re.findall(r"\brun\.(\w+)\(", text))
    assert [name for name in used[0] if not hasattr(Cluster, name)] == []
    assert [name for name in used[1] if not hasattr(Run, name)] == []


def test_the_stable_names_of_the_api_exist_with_what_is_listed_of_them() -> None:
    section = text_of(ROOT / "docs/python-api.md").split("\n## What is stable\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    assert len(rows) == 12
    for name, listed in rows:
        assert name in clusterddp.__all__
        kind = getattr(clusterddp, name)
        there = {*dir(kind), *getattr(kind, "__dataclass_fields__", ()), *inspect.get_annotations(kind)}
        assert set(re.findall(r"`(\w+)`", listed)) <= there, name


def test_every_field_of_a_log_line_is_described() -> None:
    text = text_of(ROOT / "docs/labels-and-json.md")
    assert [field.name for field in fields(LogLine) if f"`{field.name}`" not in text] == []


def test_every_example_is_described() -> None:
    text = text_of(ROOT / "examples/README.md")
    shown = [path.relative_to(ROOT / "examples").as_posix() for path in ROOT.glob("examples/*.*")]
    assert [name for name in shown if name != "README.md" and f"`{name}`" not in text] == []


def test_every_room_is_on_the_map() -> None:
    text = text_of(ROOT / "ARCHITECTURE.md")
    files = [path.name for path in (ROOT / "clusterddp").glob("*.py") if not path.name.startswith("__")]
    folders = [f"{path.parent.name}/" for path in (ROOT / "clusterddp").glob("*/__init__.py")]
    assert [name for name in files + folders if f"`{name}`" not in text] == []


def files_of_the_project() -> list[Path]:
    """What is or would be in the repository; every file where there is no git."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return [path for path in ROOT.rglob("*") if path.is_file() and path.relative_to(ROOT).parts[0][0] != "."]
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_holds_a_path_of_a_developers_machine() -> None:
    invented = ("alice", "bob", "trainer", "u", "me")  # users in examples, and the lab's
    homes = rb"/(?:home|Users)/(?!(?:" + "|".join(invented).encode() + rb")\b)[a-z][\w.-]*|/root/\w|C:\\Users"
    mine = re.escape(f"{ROOT}/".encode())
    pattern = re.compile(mine + b"|" + homes if len(ROOT.parts) > 2 else homes)
    this = Path(__file__).resolve()
    found = [
        f"{shown(path)}: {hit.group().decode()}"
        for path in files_of_the_project()
        if path != this and (hit := pattern.search(path.read_bytes()))
    ]
    assert found == []


def test_the_page_about_uninstalling_names_every_place_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setenv("HOME", "/home/u")
    places = [str(folder()) for folder in (consent.state_folder, user_folders.user_cache, kept._folder)]
    text = text_of(ROOT / "docs/uninstall.md").replace("~", "/home/u").replace("UID", "4711")
    assert [place for place in [*places, f"{FOLDER}/"] if f"`{place}" not in text] == []


def test_the_page_about_versions_has_the_numbers_of_the_protocols() -> None:
    text = text_of(ROOT / "docs/versions.md")
    assert re.findall(r"(frames|run control) \((\d+)\)", " ".join(text.split())) == [
        ("frames", str(frames.PROTOCOL)),
        ("run control", connection.PROTOCOL.rpartition(" ")[2]),
    ]
