"""Replace this process's command line and environment as a whole, as /proc and its children see them."""

import os
import sys
from typing import Any, Iterable, Sequence, Tuple

from .prctl import libc

PR_SET_MM, PR_SET_MM_MAP = 35, 14
READ_WRITE, PRIVATE_ANONYMOUS = 3, 0x22  # of mmap
NO_FILE = 0xFFFFFFFF  # in place of a descriptor


def set_environment(items: Iterable[Tuple[str, str]]) -> None:
    """Replace the environment: the C library's, os.environ's, and the one that os.environ was made from.

    Raises OSError if this Python has no ctypes.
    """
    encoded = [(os.fsencode(name), os.fsencode(value)) for name, value in items]
    libc().clearenv()
    for name, value in encoded:
        os.putenv(name, value)
    module: Any = sys.modules["posix"]
    for mapping in (os.environ._data, module.environ):  # type: ignore[attr-defined] # noqa: SLF001
        mapping.clear()
        mapping.update(encoded)


def rename(argv: Sequence[str], env: Iterable[Tuple[str, str]]) -> bool:
    """Have the kernel show this command line and environment in /proc; whether it does.

    It uses PR_SET_MM_MAP, which needs no capability, but a kernel with CONFIG_CHECKPOINT_RESTORE. The C library's
    environment then lies right after the command line, as in a started program: setproctitle finds one by the other.
    """
    import ctypes

    line = b"".join(os.fsencode(argument) + b"\0" for argument in argv)
    texts = [os.fsencode("%s=%s" % item) + b"\0" for item in env]
    variables = b"".join(texts)
    pointers = (len(texts) + 1) * ctypes.sizeof(ctypes.c_void_p)
    library = libc()
    library.mmap.restype = library.sbrk.restype = ctypes.c_void_p
    library.sbrk.argtypes = [ctypes.c_long]
    size = len(line) + len(variables)
    address = library.mmap(None, ctypes.c_size_t(pointers + size), READ_WRITE, PRIVATE_ANONYMOUS, -1, ctypes.c_long(0))
    if address in (None, ctypes.c_void_p(-1).value):
        return False
    start = address + pointers
    ctypes.memmove(start, line + variables, size)
    with open("/proc/self/stat", "rb") as file:
        fields = [b"0", b"0", b"0", *file.read().rpartition(b")")[2].split()]  # so that they have proc(5)'s numbers
    code_and_data = [int(fields[number]) for number in (26, 27, 45, 46, 47)]
    middle = start + len(line)
    fields_of_map = [*code_and_data, 0, int(fields[28]), start, middle, middle, start + size, 0, NO_FILE << 32]
    table = (ctypes.c_uint64 * len(fields_of_map))(*fields_of_map)
    length, zero = ctypes.c_ulong(ctypes.sizeof(table)), ctypes.c_ulong(0)
    while True:  # until making the table does not move the end of the heap
        table[5] = library.sbrk(0)
        if table[5] == library.sbrk(0):
            break
    if library.prctl(PR_SET_MM, ctypes.c_ulong(PR_SET_MM_MAP), ctypes.byref(table), length, zero):
        return False
    listed = (ctypes.c_void_p * len(texts)).from_address(address)  # the last is zero
    for index, text in enumerate(texts):
        listed[index] = middle
        middle += len(text)
    ctypes.c_void_p.in_dll(library, "environ").value = address
    with open("/proc/self/environ", "rb") as shown_env, open("/proc/self/cmdline", "rb") as shown_line:
        return shown_env.read() == variables and shown_line.read() == line
