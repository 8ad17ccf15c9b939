"""What the commands and the inventory tell a user to type is typed as it was printed, on this machine alone."""

from __future__ import annotations

import os
import shlex
import signal
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import WAIT, User, used_before
from tests.integration.commands.test_remedies import TRAIN, Case, named, typed_and_holds
from tests.lean import lean_python
from tests.remedies import remedy, type_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCAL = "all: {hosts: {a: {ansible_connection: local}}}\n"
WAITS = WAIT + "print('waits', flush=True)\nwait_for('/no/such/file')\n"
SECRET_STATE = '"$XDG_STATE_HOME/clusterddp"'
NOT_YOURS = remedy(
    "project/consent.py", "make it yours alone (0700), or set XDG_STATE_HOME to a folder of yours; `-i FILE` needs none"
)
REMEMBERED = f"echo '{LOCAL.strip()}' >i.yaml; clusterddp up --skip torch i.yaml || exit 1; "


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """Somebody without an inventory, whose Python has torchrun; no run of theirs is left."""
    made = used_before(User(tmp_path))
    made.write("train.py", TRAIN)
    made.write("wait.py", WAITS)
    made.env["CLUSTERDDP_PYTHON"] = lean_python()
    yield made
    made.run("stop", "--all")


CASES = [
    Case(
        told=remedy("cli/actions/discover_action.py", "`openssl rand -hex 32` makes a key"),
        first=": >key; clusterddp discover --id a --rank 0 --world-size 1 --key-file key",
        then="{told} >key && clusterddp discover --id a --rank 0 --world-size 1 --interface lo --key-file key",
        prints="MASTER_ADDR=",
    ),
    Case(
        told=remedy("cli/actions/init_action.py", "wrote {} from {}; look at it, then `clusterddp up {}`"),
        first="clusterddp init localhost --output 'my hosts.yaml'"
        " && sed -i 's/^    localhost:.*/    localhost: {ansible_connection: local}/' 'my hosts.yaml'",
        then="{told} --skip torch",
        again="clusterddp hosts",
    ),
    Case(
        told=remedy(
            "cli/actions/init_action.py", "{}: {} not kept; write what the hosts need into ansible_ssh_common_args"
        ),
        first="clusterddp init ./config",
        files={"config": "Host gpu01\n HostName 10.0.0.1\n UserKnownHostsFile /etc/hosts\n"},
        then="sed -i 's|gpu01:|&\\n      ansible_ssh_common_args: -o UserKnownHostsFile=/etc/hosts|' inventory.yaml"
        " && clusterddp hosts -i inventory.yaml",
        prints="gpu01",
    ),
    Case(
        told=remedy("inventory/load.py", "`clusterddp init {}` makes one of it"),
        first="clusterddp up 'my hostfile'",
        files={"my hostfile": "gpu01 slots=8\n"},
        then="{told} && clusterddp hosts -i inventory.yaml --json",
        prints='"clusterddp_nproc": 8',
    ),
    Case(
        told=remedy("cli/actions/init_action.py", "`clusterddp up {}` takes it as it is"),
        first="clusterddp init i.yaml",
        files={"i.yaml": LOCAL},
        then="{told} --skip torch",
        again="clusterddp hosts",
    ),
    Case(
        told=remedy("inventory/load.py", "`clusterddp up {}` takes a list of hosts"),
        first="clusterddp run -i a,b train.py",
        then="{told} -e ansible_connection=local --skip torch",
        again="clusterddp hosts",
    ),
    Case(
        told=remedy("cli/actions/pull_action.py", "write [RUN|PATH] [DEST], or --run RUN [DEST]"),
        first="clusterddp pull a b c",
        then="clusterddp run --name a train.py && clusterddp pull train.py here && clusterddp pull --run a there"
        " && clusterddp pull a elsewhere",
    ),
    Case(
        told=remedy("cli/inventory_choice.py", "`clusterddp up FILE` remembers another"),
        first=REMEMBERED + "mv i.yaml other.yaml; clusterddp hosts",
        then="clusterddp up --skip torch other.yaml",
        again="clusterddp hosts",
    ),
    Case(
        told=remedy("cli/main.py", "; torchrun's own go through --torchrun-arg, the script's stand after SCRIPT"),
        first="clusterddp run --max-restart-time 3 train.py",
        then="clusterddp run --torchrun-arg=--start-method=fork train.py --max-restart-time 3",
        prints="trained",
    ),
    Case(
        told=remedy("cli/main.py", "`clusterddp run SCRIPT` starts a script on every host"),
        first="clusterddp launch train.py",
        then="clusterddp run train.py",
        prints="trained",
    ),
    Case(
        told=remedy(
            "cli/main.py",
            "`clusterddp push FILE DEST` brings files to every host, `clusterddp pull FILE` brings them here",
        ),
        first="clusterddp scp data.txt local0:",
        files={"data.txt": "data\n"},
        then="clusterddp push data.txt data.txt && rm data.txt && clusterddp pull data.txt",
        prints="data.txt",
    ),
    Case(
        told=remedy("cli/main.py", "`clusterddp logs -f` follows a run"),
        first="clusterddp run train.py; clusterddp attach",
        then="clusterddp logs -f",
        prints="trained",
    ),
    Case(
        told=NOT_YOURS,
        first=f"{REMEMBERED} chown 65534 {SECRET_STATE}; clusterddp hosts",
        then="clusterddp hosts -i i.yaml && XDG_STATE_HOME=$HOME/own clusterddp up --skip torch i.yaml"
        " && XDG_STATE_HOME=$HOME/own clusterddp hosts",
        again=f"chown $(id -u) {SECRET_STATE} && chmod 0700 {SECRET_STATE} && clusterddp up --skip torch i.yaml",
    ),
    Case(
        told=remedy("project/consent.py", "remove it; each project then wants its `clusterddp up FILE` again"),
        first=f"{REMEMBERED} echo short >{SECRET_STATE}/consent.key; clusterddp hosts",
        then=f"rm {SECRET_STATE}/consent.key; ! clusterddp hosts && clusterddp up --skip torch i.yaml",
        again="clusterddp hosts",
    ),
    Case(
        told=remedy("inventory/trusted.py", "if you trust that: `clusterddp up {}`"),
        first=f"{REMEMBERED} chmod o+w i.yaml; clusterddp hosts",
        then="{told} --skip torch",
        again="clusterddp hosts",
    ),
    Case(
        told=remedy("inventory/hostlist.py", "write it as -e clusterddp_nproc=2"),
        first="clusterddp up localhost -e clusterddp_nproc",
        then="! clusterddp up no-such-host.invalid -e clusterddp_nproc=2;"
        " clusterddp hosts -i .clusterddp/inventory.yaml --json",
        prints='"clusterddp_nproc": 2',
    ),
    Case(
        told=remedy("inventory/validate.py", "name the host plainly and put its address into ansible_host"),
        first="clusterddp hosts -i i.yaml",
        files={
            "i.yaml": "all: {hosts: {'a/b': {}}}\n",
            "mended.yaml": "all: {hosts: {a: {ansible_host: b.example}}}\n",
        },
        then="clusterddp hosts -i mended.yaml",
    ),
    Case(
        told=remedy("inventory/local_python.py", "if you trust it: `export {}={}`"),
        first="unset CLUSTERDDP_PYTHON; mkdir 'my bin' && printf '#!/bin/sh\\nexec {python} \"$@\"\\n' >'my bin/python'"
        " && chmod +x 'my bin/python'"
        " && clusterddp run --dry-run train.py",
        files={"pyproject.toml": '[tool.clusterddp]\npython = "my bin/python"\n'},
        then="{told} && clusterddp run --dry-run train.py",
    ),
    Case(
        told=remedy(
            "launch/script.py",
            "take {} for SCRIPT, and put what the shell script sets into clusterddp_setup or --env",
        ),
        first="clusterddp run train.sh",
        files={"train.sh": "#!/bin/sh\nexport NOPE=set\npython train.py --lr 1\n"},
        then="clusterddp run --env NOPE=set train.py --lr 1",
        prints="trained set",
    ),
    Case(
        told=remedy("cli/host_list.py", "`clusterddp up {}` takes it as it is; to take the list, move it away first"),
        first="mkdir -p sub; clusterddp up no-such-host.invalid 2>/dev/null; cd sub;"
        " sed -i 's/no-such-host.invalid: .*/a: {ansible_connection: local}/' ../.clusterddp/inventory.yaml;"
        " clusterddp up no-such-host.invalid",
        then="cd sub && {told} --skip torch",
        again="mv .clusterddp/inventory.yaml old.yaml; clusterddp up no-such-host.invalid;"
        " grep no-such .clusterddp/inventory.yaml",
    ),
    Case(
        told=remedy(
            "cli/actions/up_action.py", "the hosts stand in {}: edit it where that helps, then `clusterddp up {}`"
        ),
        first="mkdir -p sub; clusterddp up no-such-host.invalid 2>/dev/null;"
        " cd sub; clusterddp up no-such-host.invalid",
        then="cd sub && sed -i 's/no-such-host.invalid: .*/a: {ansible_connection: local}/'"
        " ../.clusterddp/inventory.yaml && {told} --skip torch",
        again="clusterddp hosts",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_what_a_command_tells_is_typed_and_holds(user: User, case: Case) -> None:
    typed_and_holds(user, case)


OPENS = remedy("cli/main.py", "`clusterddp shell HOST` opens a shell on a host")
ENDS = remedy("cli/main.py", "`clusterddp stop RUN` ends a run")
DETACHED = remedy(
    "cli/attach.py", "detached; `clusterddp logs --follow {}` shows it again, `clusterddp stop {}` ends it"
)
STOPPING = remedy("cli/attach.py", "stopping run {}; Ctrl-C again leaves the rest to `clusterddp stop {}`")
LEFT = remedy("cli/attach.py", "left in the middle of the stop; `clusterddp stop {}` finishes it")
UNREAD = remedy("cli/attach.py", "{}; run {} goes on, `clusterddp logs --follow {}` shows it")
RESULT = remedy("cli/attach.py", "--result {}: cannot be written ({}); `clusterddp status {} --json` tells it")
NOT_READY = remedy(
    "cli/actions/run_action.py",
    "`up` has not made the hosts of {} ready: `clusterddp up {}`, or `clusterddp run -i {} SCRIPT`",
)
SHOWN = remedy("cli/interrupts.py", "`clusterddp logs --follow {}` shows it again")
LOOKED = remedy("cli/interrupts.py", "run {} goes on; {}, `clusterddp stop {}` ends it")
OTHERS = remedy("cli/actions/runs_action.py", "no run of this project on these hosts; --all shows {} of others")
COUNT = remedy(
    "inventory/hostlist.py",
    "for processes write {}, and clusterddp_nproc: {} in the inventory "
    "(`clusterddp up {} -e clusterddp_nproc={}`); for a port ansible_port: {} there",
)
FOLDER = remedy("inventory/load.py", "`clusterddp up {}` has Ansible read it; or give one of the files in it")
PULL = remedy("cli/actions/down_action.py", "what exists only there is lost: `clusterddp pull` brings it here before")
FORGOTTEN = remedy(
    "cli/actions/down_action.py", "{} is forgotten, so that no command reaches these hosts; `clusterddp up` begins anew"
)
EVERYTHING = remedy("cli/down_tables.py", "{}; --everything removes it")
PURGE = remedy("cli/down_tables.py", "{} on record: 30 days, or with --purge")
KEPT = remedy(
    "cli/actions/pull_action.py", "here is something else by that name, which stays: {}; --overwrite replaces it"
)


def shows(user: User, command: str, text: str) -> None:
    """A command that follows a run shows its lines; it is ended by Ctrl-C then."""
    words = shlex.split(command)
    assert words.pop(0) == "clusterddp"
    with user.start(*words) as live:
        live.wait_for(text)
        live.interrupt()
        live.end()


def ends(user: User, command: str, run: str) -> None:
    done = type_line(user, command)
    assert done.code == 0, done.err
    assert user.status(run)["state"] == "stopped"


def test_a_word_of_other_tools_is_answered_by_the_command_that_does_it(user: User) -> None:
    assert OPENS.commands(user.run("ssh", "local0").err) == ["clusterddp shell HOST"]
    with user.start("shell", "--bare", "local0", terminal=True) as live:
        live.wait_for("$" if os.geteuid() else "#")
        live.key("echo in a $((1 + 1)) shell; exit\r")
        live.wait_for("in a 2 shell")
        assert live.end().code == 0
    assert ENDS.commands(user.run("cancel").err) == ["clusterddp stop RUN"]
    run = user.run("run", "--detach", "wait.py").out.strip()
    ends(user, f"clusterddp stop {run}", run)


def test_a_run_that_is_left_is_shown_and_ended_by_what_is_told(user: User) -> None:
    with user.start("run", "wait.py") as live:
        run = live.run
        live.wait_for("waits", times=2)
        live.process.send_signal(signal.SIGQUIT)
        detached = live.end()
    follows, stops = DETACHED.commands(detached.err)
    shows(user, follows, "waits")
    with user.start("logs", "--follow", run) as follower:
        follower.wait_for("waits", times=2)
        follower.interrupt()
        left = follower.end()
    (again,) = SHOWN.commands(left.err)
    shows(user, again, "waits")
    assert LOOKED.printed(left.err)[-1] == run
    assert stops in LOOKED.commands(left.err)[-1]
    with user.start("wait", "-v", run) as waiter:
        waiter.wait_for("local0: runs begins", times=5, stream="err")  # it asks again and again
        waiter.interrupt()
        unwaited = waiter.end()
    assert unwaited.code == 130
    assert unwaited.notes[-1] == left.notes[-1]
    ends(user, stops, run)


def test_a_stop_that_is_left_is_finished_by_what_is_told(user: User) -> None:
    """The workers take SIGTERM for nothing, so that the stop lasts until it is left."""
    user.write("deaf.py", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS)
    with user.start("run", "--grace", "60s", "deaf.py") as live:
        run = live.run
        live.wait_for("waits", times=2)
        live.interrupt()
        live.wait_for("stopping run", stream="err")
        live.interrupt()
        done = live.end()
    (command,) = LEFT.commands(done.err)
    assert STOPPING.commands(done.err) == [command]
    ends(user, f"{command} --grace 1s", run)


def test_a_run_whose_reader_is_gone_is_shown_by_what_is_told(user: User) -> None:
    with user.start("run", "wait.py", prefix=("sh", "-c", 'exec "$@" >/dev/full', "sh")) as live:
        done = live.end()
    (command,) = UNREAD.commands(done.err)
    shows(user, command, "waits")


def test_the_command_that_is_told_prints_the_result_that_could_not_be_written(user: User) -> None:
    (user.folder / "full").symlink_to("/dev/full")
    done = user.run("run", "--result", "full", "train.py")
    (command,) = RESULT.commands(done.err)
    told = type_line(user, command)
    assert (told.code, told.json["state"]) == (0, "succeeded"), told.err


def test_all_shows_the_runs_of_other_projects(user: User) -> None:
    assert user.run("run", "train.py").code == 0
    other = user.folder.parent / "other"
    other.mkdir()
    empty = user.run("runs", cwd="../other")
    assert OTHERS.printed(empty.err) == ("1 run",)
    assert "succeeded" in user.run("runs", "--all", cwd="../other").out


@pytest.mark.parametrize("user_name", ["", "alice@"])
def test_a_number_of_processes_is_given_as_it_is_told_with_the_user_that_was_named(user: User, user_name: str) -> None:
    said = user.run("up", f"{user_name}no-such-host.invalid:2")
    (command,) = COUNT.commands(said.err)
    type_line(user, command)  # the host is none, but the inventory stands
    (host,) = user.run("hosts", "-i", ".clusterddp/inventory.yaml", "--json").json
    assert (host["user"], host["vars"]["clusterddp_nproc"]) == (user_name.rstrip("@") or None, 2)


def test_a_folder_is_read_by_ansible_as_it_is_told(user: User) -> None:
    pytest.importorskip("ansible", reason="Ansible reads this kind of inventory")
    user.write("my hosts/gpu.yaml", LOCAL)
    (command,) = FOLDER.commands(user.run("hosts", "-i", "my hosts").err)
    done = type_line(user, f"{command} --skip torch")
    assert done.code == 0, done.err
    assert user.run("hosts", "-i", "my hosts/gpu.yaml").code == 0


def test_a_file_that_is_here_is_replaced_where_it_is_told(user: User) -> None:
    user.write("writes.py", "open('made.txt', 'w').write('made')\n")
    assert user.run("run", "--nnodes", "1", "writes.py").code == 0
    user.write("here/made.txt", "mine")
    first = user.run("pull", "made.txt", "here")
    assert KEPT.printed(first.err) == ("made.txt",), first.err
    assert user.run("pull", "--overwrite", "made.txt", "here").code == 0
    assert (user.folder / "here/made.txt").read_text() == "made"


def test_what_down_leaves_is_brought_here_and_removed_as_it_is_told(user: User) -> None:
    user.write("writes.py", "open('made.txt', 'w').write('made')\n")
    python = user.env["CLUSTERDDP_PYTHON"]
    user.write("i.yaml", f"all: {{hosts: {{a: {{ansible_connection: local, clusterddp_python: {python}}}}}}}\n")
    user.up(user.folder / "i.yaml")
    assert user.run("run", "writes.py").code == 0
    stays = user.run("down", "--yes")
    assert EVERYTHING.found(stays.err)
    assert PURGE.found(stays.err)
    assert user.run("down", "--purge", "--yes").code == 0
    assert user.run("run", "writes.py").code == 0
    with user.start("down", "--everything", terminal=True) as asked:
        asked.wait_for("remove all of it?")
        asked.key("n\n")
        (command,) = PULL.commands(asked.end().out)
    assert type_line(user, command).code == 0
    assert [path.read_text() for path in user.folder.rglob("made.txt")] == ["made"]
    gone = user.run("down", "--everything", "--yes")
    assert gone.code == 0, gone.err
    (command,) = FORGOTTEN.commands(gone.err)
    done = type_line(user, command)
    assert done.code == 0, done.err


def test_hosts_that_up_has_not_made_ready_are_named_in_lines_that_take_them(user: User) -> None:
    text = "all: {hosts: {a: {ansible_connection: local, clusterddp_python: /nope}}}\n"
    user.write("my hosts.yaml", text)
    assert user.run("up", "my hosts.yaml").code == 1
    _, up, run = NOT_READY.commands(user.run("run", "--dry-run", "train.py").err)
    user.write("my hosts.yaml", text.replace("/nope", user.env["CLUSTERDDP_PYTHON"]))
    for line in (run.replace("SCRIPT", "--dry-run train.py"), up):
        done = type_line(user, line)
        assert done.code == 0, (line, done.err)
