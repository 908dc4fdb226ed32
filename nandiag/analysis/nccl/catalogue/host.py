"""Messages on the host: shared memory, limits, processes, bootstrap (pure)."""

from nandiag.analysis.nccl.catalogue.entry import Entry

ENTRIES = (
    Entry(
        "nccl_shm_full",
        r"(?:shared memory|/dev/shm|posix_fallocate|shm_open|failed to extend).*No space left on device"
        r"|failed to extend (?:/dev/shm/)?nccl",
        "the shared memory of this host (/dev/shm) is full",
        "Give the container more (`--shm-size=16g` or `--ipc=host`; in Kubernetes an emptyDir of medium Memory at "
        "/dev/shm), "
        "and remove stale /dev/shm/nccl-* files.",
    ),
    Entry(
        "nccl_shm_gone",
        r"attaching to shared memory segment .*|Call to open failed: No such file or directory",
        "a rank could not open the shared memory that another rank of the same host had made",
        "Give all ranks of a host one /dev/shm (`--ipc=host`); set RemoveIPC=no for systemd; "
        "NCCL_CUMEM_HOST_ENABLE=0 may help.",
    ),
    Entry(
        "nccl_shm",
        r"(?:creating|mmap|map|munmap|unlink).{0,40}shared memory|Error: Could not map",
        "shared memory between the ranks of a host failed",
        "Check the size and the permissions of /dev/shm (`df -h /dev/shm`).",
    ),
    Entry(
        "nccl_open_files",
        r"Too many open files",
        "this process ran out of file descriptors",
        "Raise the limit: `ulimit -n 65536` before the launch.",
    ),
    Entry(
        "nccl_memory",
        r"(?:Failed to (?:malloc|allocate)|Call to (?:malloc|mmap) failed|Cannot allocate memory|[Aa]llocation failed)",
        "the host gave NCCL no memory",
        "Check free memory and the limits of the container.",
    ),
    Entry(
        "nccl_bootstrap",
        r"Bootstrap Root : (?:rank \d+ of \d+ ranks has already checked in|mismatch)"
        r"|improper usage of ncclCommInitRank",
        "two processes claimed the same rank when the communicator was made",
        "Check RANK and WORLD_SIZE of all processes, and that no old job uses the same rendezvous.",
    ),
    Entry(
        "nccl_proxy_lost",
        r"Socket recv failed while polling|\[Proxy Service[^\]]*\] Failed to execute operation (?P<what>\w+)"
        r"|\[Service thread\] (?:Could not receive|Error encountered|Accept failed)|ncclProxyClient\w+ call",
        "a request to NCCL's helper thread of a rank on the same host failed",
        "Look at the error before this one; it usually follows from it.",
        follows=True,
    ),
    Entry(
        "nccl_comm_id",
        r"Invalid NCCL_COMM_ID",
        "NCCL_COMM_ID is not an address",
        "Unset it: torch makes the communicators itself.",
    ),
    Entry(
        "nccl_race",
        r"host threads racing to launch NCCL",
        "two threads of one process launched collectives on the same device at once",
        "Launch collectives from one thread, or guard them with a lock.",
    ),
)  # fmt: skip
