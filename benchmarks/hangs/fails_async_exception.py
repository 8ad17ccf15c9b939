"""A thread of one rank raises an exception in its main thread.

class: failed
ranks: 1
"""

import ctypes
import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
print("ready", flush=True)
if dist.get_rank() == 1:
    ident, kill = ctypes.c_ulong(threading.main_thread().ident), ctypes.pythonapi.PyThreadState_SetAsyncExc
    threading.Timer(0.2, kill, (ident, ctypes.py_object(MemoryError))).start()
    while True:  # HERE
        pass
dist.all_reduce(torch.ones(4))
