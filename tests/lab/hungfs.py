"""A file system that never answers, as that of a dead file server: `hungfs.py FOLDER`, as root.

It is mounted, says `mounted`, takes every further question and answers none: who asks is held in the kernel, not to
be killed. The mount ends with this program.
"""

import ctypes
import os
import struct
import sys

HEADER = struct.Struct("<IIQQIIII")  # length, operation, number, node, uid, gid, pid, padding
INIT = 26
NOSUID_NODEV = 2 | 4


def main(folder: str) -> None:
    handle = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={handle},rootmode=40000,user_id=0,group_id=0,allow_other"
    if libc.mount(b"hung", folder.encode(), b"fuse", NOSUID_NODEV, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    while True:
        question = os.read(handle, 1 << 18)
        _, operation, number = HEADER.unpack_from(question)[:3]
        if operation == INIT:
            major, minor, ahead = struct.unpack_from("<III", question, HEADER.size)
            answer = struct.pack("<IIIIHHIIHHI28x", major, minor, ahead, 0, 12, 9, 4096, 1, 0, 0, 0)
            os.write(handle, struct.pack("<IiQ", 16 + len(answer), 0, number) + answer)
            print("mounted", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
