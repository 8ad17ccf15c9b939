"""Messages of hosts and GPUs: memory, drivers, hardware, disks, limits. Data only."""

from __future__ import annotations

from clusterddp.runs.view.known_messages.row import KnownMessage

ROWS = (
    # Memory
    KnownMessage(
        name="oom-killer",
        pattern=r"killed by the kernel's out-of-memory killer|killed by signal: Killed",
        cause="the host, or the job's memory limit, ran out of memory",
        remedy="fewer DataLoader workers or smaller batches; look at `free -h` and at the limit of the job's cgroup",
        check="memory",
    ),
    KnownMessage(
        name="cuda-oom",
        pattern=r"CUDA out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        cause="the GPU's memory is full",
        remedy="a smaller batch, activation checkpointing or sharding; if other processes hold memory, --gpus free",
        check="busy-gpus",
    ),
    KnownMessage(
        name="shared-memory",
        pattern=r"killed by signal: Bus error|unable to (allocate|open|resize) shared memory"
        r"|(failed to extend|creating shared memory segment) \S*nccl-|posix_fallocate failed",
        cause="the shared memory (/dev/shm) is too small or full",
        remedy="mount it larger (--shm-size of a container), remove stale files in it, or use fewer DataLoader workers",
        check="shm",
    ),
    KnownMessage(
        name="cpu-memory",
        pattern=r"DefaultCPUAllocator: can't allocate memory|MemoryError\b|Cannot allocate memory",
        cause="the host has not so much memory",
        remedy="load less at once, and compare `free -h` and `ulimit -v` on the host with what the job wants",
        check="memory",
    ),
    KnownMessage(
        name="loader-died",
        pattern=r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly",
        cause="a DataLoader worker died",
        remedy="often memory ran out: fewer of them (num_workers) need less; with none the error shows itself",
    ),
    # GPUs
    KnownMessage(
        name="driver-too-old",
        pattern=r"NVIDIA driver on your system is too old|driver version is insufficient",
        cause="the host's NVIDIA driver is older than this torch needs",
        remedy="install a torch built for the CUDA version that `nvidia-smi` shows, or a newer driver",
        check="driver",
    ),
    KnownMessage(
        name="no-driver",
        pattern=r"Found no NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device",
        cause="torch finds no GPU on the host",
        remedy="run `nvidia-smi` there; look at CUDA_VISIBLE_DEVICES, the driver, the container's GPU options",
        check="gpus",
    ),
    KnownMessage(
        name="torch-without-cuda",
        pattern=r"Torch not compiled with CUDA enabled|Distributed package doesn't have NCCL",
        cause="this torch was built without CUDA",
        remedy="install a CUDA build of torch in clusterddp_python's environment, or train with gloo on the CPU",
        check="torch",
    ),
    KnownMessage(
        name="no-kernel-image",
        pattern=r"no kernel image is available|is not compatible with the current PyTorch installation",
        cause="this torch, or an extension, was not built for this GPU's generation",
        remedy="install a build that lists the GPU's sm_XX in torch.cuda.get_arch_list(), and rebuild extensions",
        check="architecture",
    ),
    KnownMessage(
        name="device-ordinal",
        pattern=r"invalid device ordinal",
        cause="the script asks for a GPU number that its host does not have",
        remedy="use LOCAL_RANK, not RANK, as the device number, and --nproc-per-node no larger than the GPUs",
        check="gpus",
    ),
    KnownMessage(
        name="duplicate-gpu",
        pattern=r"Duplicate GPU detected",
        cause="two ranks use the same GPU",
        remedy='call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the first collective',
    ),
    KnownMessage(
        name="device-assert",
        pattern=r"device-side assert triggered",
        cause="a CUDA kernel refused its input, most often a label or an index out of range",
        remedy="run with --env CUDA_LAUNCH_BLOCKING=1, or once on the CPU, to see the line",
    ),
    KnownMessage(
        name="illegal-access",
        pattern=r"illegal memory access|unspecified launch failure",
        cause="a CUDA kernel broke; the line shown may be a later one",
        remedy="run with --env CUDA_LAUNCH_BLOCKING=1; if it is always the same GPU, look at `nvidia-smi -q` and Xids",
        check="gpu-health",
    ),
    KnownMessage(
        name="gpu-broken",
        pattern=r"uncorrectable ECC error|GPU is lost|fallen off the bus|CUDA error: unknown error",
        cause="the GPU or its link is broken",
        remedy="take the host out of the run with --limit, and have the GPU reset or replaced",
        check="gpu-health",
    ),
    KnownMessage(
        name="fabric-manager",
        pattern=r"Error 802|system not yet initialized|cudaErrorSystemNotReady",
        cause="the fabric manager of the NVSwitch does not run",
        remedy="start nvidia-fabricmanager, of exactly the driver's version",
        check="fabric-manager",
    ),
    KnownMessage(
        name="cuda-in-fork",
        pattern=r"Cannot re-initialize CUDA in forked subprocess",
        cause="CUDA was used before a fork",
        remedy='use multiprocessing_context="spawn", and touch no GPU before the workers are started',
    ),
    # Files and limits
    KnownMessage(
        name="disk-full",
        pattern=r"No space left on device|ENOSPC|Disk quota exceeded|unexpected pos \d+ vs \d+",
        cause="the disk is full, or your quota used up",
        remedy="free some on that host (`df -h`, `df -i`, `quota`), or set clusterddp_workdir to a larger one",
        check="disk",
    ),
    KnownMessage(
        name="stale-files",
        pattern=r"Stale file handle|Transport endpoint is not connected",
        cause="a network file system lost its server",
        remedy="mount it anew on that host",
        check="mounts",
    ),
    KnownMessage(
        name="file-missing",
        pattern=r"FileNotFoundError|No such file or directory",
        cause="that file is not on this host",
        remedy="what git ignores, or a run writes on one host, is not on the others: push it, or use a shared folder",
        check="paths",
    ),
    KnownMessage(
        name="permission-denied",
        pattern=r"Permission ?[dD]enied|Operation not permitted",
        cause="the user of the job may not do that on this host",
        remedy="compare owner and mode with the other hosts (`ls -ld`)",
    ),
    KnownMessage(
        name="open-files",
        pattern=r"Too many open files",
        cause="the limit of open files is too low",
        remedy="raise nofile in /etc/security/limits.d, or torch.multiprocessing.set_sharing_strategy('file_system')",
        check="limits",
    ),
    KnownMessage(
        name="threads",
        pattern=r"can't start new thread|pthread_create failed|Resource temporarily unavailable",
        cause="the limit of processes and threads is too low",
        remedy="raise `ulimit -u` or the cgroup's pids.max; OMP_NUM_THREADS and fewer DataLoader workers need less",
        check="limits",
    ),
)
