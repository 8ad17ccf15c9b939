"""Programs whose children leave in every way a process can; each prints ``<kind> <pid>``.

They run as the agent of a node (runs_started.running).
"""

from __future__ import annotations

# What the programs share. `leave` starts a program that sleeps, deaf to SIGTERM, and prints its pid as `kind`.
COMMON = r"""
import ctypes, os, signal, subprocess, sys, threading

SLEEPS = "import os, signal, threading; signal.signal(15, signal.SIG_IGN); %s; threading.Event().wait(600)"

def say(kind, pid):
    os.write(1, ("%s %d\n" % (kind, pid)).encode())

def python(*before):
    return [sys.executable, "-c", SLEEPS % "; ".join(before or ("pass",))]

def wipe():
    # what setproctitle does to make room for its title
    fields = open("/proc/self/stat").read().rpartition(")")[2].split()
    begin, end = int(fields[47]), int(fields[48])
    ctypes.memset(begin, 0, end - begin)

def orphan(kind, argv=None, env=None, files=True, folder=None):
    # forked twice, in a session of its own, told by its parent before that one ends
    if os.fork():
        os.wait()
        return
    os.setsid()
    pid = os.fork()
    if pid:
        say(kind, pid)
        os._exit(0)
    if folder:
        os.chdir(folder)
    if not files:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
    if argv:
        os.execve(argv[0], argv, env if env is not None else dict(os.environ))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wipe()
    threading.Event().wait(600)

def wait():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say("agent", os.getpid())
    threading.Event().wait(600)
"""

EVERY_WAY = (
    COMMON
    + """
say("session", subprocess.Popen(python(), start_new_session=True).pid)
say("bare", subprocess.Popen(python(), env={}, start_new_session=True).pid)
orphan("orphan", python())
orphan("bare_orphan", python(), env={}, files=False, folder="/")
orphan("writing_orphan", python(), env={}, folder="/")
orphan("standing_orphan", python(), env={}, files=False, folder=os.environ["CLUSTERDDP_RUN_DIR"])
orphan("wiped_orphan", files=False, folder="/")
wait()
"""
)
WAYS = ("agent", "session", "bare", "orphan", "bare_orphan", "writing_orphan", "standing_orphan", "wiped_orphan")

# What belongs to another run, though it descends from this one and shares its session.
OF_ANOTHER = (
    COMMON
    + """
other = dict(os.environ, CLUSTERDDP_RUN_ID="another")
foreign = subprocess.Popen([sys.executable, "-c", '''
import os, subprocess, sys, threading
waits = "import threading; threading.Event().wait(600)"
print("below", subprocess.Popen([sys.executable, "-c", waits], env={}).pid, flush=True)
threading.Event().wait(600)
'''], env=other)
say("foreign", foreign.pid)
wait()
"""
)

# Its main thread ends, another one stays: the process looks dead.
HEADLESS = (
    COMMON
    + r"""
HEADLESS = '''
import ctypes, signal, sys, threading, time
signal.signal(15, signal.SIG_IGN)
sleep = ctypes.CDLL(None).sleep
threading.Thread(target=sleep, args=(600,), daemon=True).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
'''
child = subprocess.Popen([sys.executable, "-c", HEADLESS], start_new_session=True)
say("headless", child.pid)
wait()
"""
)

LOADER = (
    COMMON
    + """
import torch.utils.data

class Stuck(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        say("loader%d" % index, os.getpid())
        threading.Event().wait(600)

iter(torch.utils.data.DataLoader(Stuck(), num_workers=2, batch_size=1)).__next__()
"""
)
