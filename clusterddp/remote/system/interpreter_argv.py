"""Change the command line of an interpreter that is still starting: it then runs another script, as if started with it.

CPython keeps what it will run in its PyConfig, whose layout differs between versions. Nothing here knows the layout:
the interpreter was started with arguments that occur nowhere else, and the fields that hold them are searched for.
Unless each is found exactly once, nothing is changed.
"""

import ctypes
import os
import struct
import sys
from typing import Any, Callable, Iterator, List, Sequence, Tuple

from .prctl import libc

CONFIG_WORDS = 160  # of PyConfig, and a little more; 3.13's has 60
RUNTIME_WORDS = 1 << 17  # of _PyRuntime, at most
WORD = struct.calcsize("P")
WCHAR = ctypes.sizeof(ctypes.c_wchar)


class NotFoundError(Exception):
    """This Python keeps its command line somewhere else."""


class Memory:
    """This process's memory, read through /proc so that a wrong address is an error and no crash."""

    def __init__(self) -> None:
        self.handle = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)

    def words(self, address: int, count: int) -> Tuple[int, ...]:
        """``count`` machine words; fewer where the memory ends."""
        try:
            data = os.pread(self.handle, count * WORD, address)
        except (OSError, OverflowError):
            return ()
        complete = len(data) // WORD
        return struct.unpack("%dP" % complete, data[: complete * WORD])

    def text(self, address: int, length: int) -> str:
        """A wide string of ``length`` characters; empty where there is none."""
        try:
            data = os.pread(self.handle, (length + 1) * WCHAR, address) if address else b""
            if not data.endswith(TEXT_END):
                return ""
            return ctypes.wstring_at((ctypes.c_char * len(data)).from_buffer_copy(data))
        except (OSError, OverflowError, ValueError):
            return ""

    def is_list(self, items: int, texts: Sequence[str]) -> bool:
        """Whether ``items`` is the address of an array of pointers to exactly these wide strings."""
        pointers = self.words(items, len(texts)) if items else ()
        return len(pointers) == len(texts) and all(
            self.text(pointers[at], len(text)) == text for at, text in enumerate(texts)
        )


TEXT_END = b"\0" * WCHAR


def replace_argv(script: str, start_folder: str, argv: Sequence[str], folder: str) -> None:
    """Make this starting interpreter run ``argv``: ``python -u SCRIPT …`` or ``python -u -m MODULE …``.

    It was started as ``python -u WORD`` in ``start_folder``, and ``script`` is that WORD; ``folder`` is the present
    one. ``argv`` includes the interpreter. Raises NotFoundError before anything is changed.
    """
    memory = Memory()
    try:
        config = _config()
        words = memory.words(config, CONFIG_WORDS)
        orig_argv: List[str] = [*getattr(sys, "orig_argv", ())]  # since Python 3.10
        files = [at for at, pointer in enumerate(words) if memory.text(pointer, len(script)) == script]
        path = start_folder + "/" + script  # so that of "/" it begins with two
        absolute = [at for at, pointer in enumerate(words) if memory.text(pointer, len(path)) == path]
        lists = [_lists(memory, words, texts) for texts in ([script], orig_argv)]
        if not orig_argv or len(files) + len(absolute) != 1 or any(len(found) != 1 for found in lists):
            raise NotFoundError("its fields were not found")
        (at,) = files or absolute
        if words[at - 1] or words[at - 2] or not at:  # run_module and run_command stand before run_filename
            raise NotFoundError("run_module was not found")
        runtime = list(_runtime_lists(memory, orig_argv))
        if len(runtime) != 1:
            raise NotFoundError("the runtime's own copy was not found")
    finally:
        os.close(memory.handle)
    _rewrite(config, at, bool(absolute), [found[0] for found in lists], runtime, list(argv), folder)


def _rewrite(
    config: int, at: int, absolute: bool, lists: List[int], runtime: List[int], argv: List[str], folder: str
) -> None:
    """Write ``argv`` to PyConfig, the runtime's copies at ``runtime``, and sys.

    ``at`` is the offset of run_filename in words, ``lists`` those of argv and orig_argv; ``absolute``: it holds a path.
    """
    rest = argv[2:]  # after python -u
    module = rest[0] == "-m"
    own = ["-m", *rest[2:]] if module else rest
    if module:
        _write_word(config + (at - 1) * WORD, _allocate_text(rest[1]))
        _write_word(config + at * WORD, 0)
    else:
        path = rest[0]
        if absolute and not os.path.isabs(path):
            path = folder + "/" + path
        _write_word(config + at * WORD, _allocate_text(path))
    _write_list(config + lists[0] * WORD, own)
    _write_list(config + lists[1] * WORD, argv)
    for address in runtime:
        _write_list(address, argv, _allocate_unchecked)
    sys.argv[:] = own
    sys.orig_argv[:] = argv  # type: ignore[attr-defined,unused-ignore]


def _config() -> int:
    api: Any = ctypes.pythonapi
    if not hasattr(api, "_Py_GetConfig"):
        raise NotFoundError("this Python does not tell its configuration")
    api._Py_GetConfig.restype = ctypes.c_void_p  # noqa: SLF001
    return int(api._Py_GetConfig() or 0)  # noqa: SLF001


def _lists(memory: Memory, words: Sequence[int], texts: Sequence[str]) -> List[int]:
    """The offsets in ``words`` of a length followed by a pointer to an array of these strings."""
    return [at for at in range(len(words) - 1) if words[at] == len(texts) and memory.is_list(words[at + 1], texts)]


def _runtime_lists(memory: Memory, texts: Sequence[str]) -> Iterator[int]:
    """The addresses of the copy that Py_GetArgcArgv returns; setproctitle and others call it."""
    api: Any = ctypes.pythonapi
    count, items = ctypes.c_int(), ctypes.c_void_p()
    api.Py_GetArgcArgv(ctypes.byref(count), ctypes.byref(items))
    start = ctypes.addressof(ctypes.c_char.in_dll(api, "_PyRuntime"))
    if count.value != len(texts) or not memory.is_list(items.value or 0, texts):
        return
    for at in range(0, RUNTIME_WORDS, 4096):
        words = memory.words(start + at * WORD, 4097)
        for index in range(len(words) - 1):
            if words[index] == len(texts) and words[index + 1] == items.value:
                yield start + (at + index) * WORD
        if len(words) < 4097:
            return


def _allocate(size: int) -> int:
    api: Any = ctypes.pythonapi
    return _allocated(api.PyMem_RawMalloc, size)  # Python frees it as its own


def _allocate_unchecked(size: int) -> int:
    """Allocate what Python frees at its very end, when its checks of memory (PYTHONDEVMODE, PYTHONMALLOC) are off."""
    is_debug_build = hasattr(sys, "gettotalrefcount")  # that one has them to the end
    return _allocate(size) if is_debug_build else _allocated(libc().malloc, size)


def _allocated(malloc: Any, size: int) -> int:
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    address = malloc(size)
    if not address:
        raise MemoryError(size)
    return int(address)


def _allocate_text(text: str, allocate: Callable[[int], int] = _allocate) -> int:
    buffer = ctypes.create_unicode_buffer(text)
    address = allocate(ctypes.sizeof(buffer))
    ctypes.memmove(address, buffer, ctypes.sizeof(buffer))
    return address


def _write_word(address: int, value: int) -> None:
    ctypes.memmove(address, struct.pack("P", value), WORD)


def _write_list(address: int, texts: Sequence[str], allocate: Callable[[int], int] = _allocate) -> None:
    """Write a PyWideStringList: its length, and the address of an array of wide strings."""
    items = allocate(WORD * max(1, len(texts)))
    for index, text in enumerate(texts):
        _write_word(items + index * WORD, _allocate_text(text, allocate))
    _write_word(address, len(texts))
    _write_word(address + WORD, items)
