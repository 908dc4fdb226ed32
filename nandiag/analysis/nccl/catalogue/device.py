"""Messages on GPUs, the CUDA driver and NVLink (pure)."""

from nandiag.analysis.nccl.catalogue.entry import Entry

ENTRIES = (
    Entry(
        "nccl_gpu_out_of_memory",
        r"Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA (?:calloc|malloc)|CUDA.{0,30}out of memory",
        "a GPU had no memory left for NCCL's buffers",
        "Leave a GB free beside the model, or lower NCCL_BUFFSIZE and the number of process groups.",
    ),
    Entry(
        "nccl_duplicate_gpu",
        r"Duplicate GPU detected : rank (?P<one>\d+) and rank (?P<other>\d+) both on CUDA device (?P<bus>\w+)",
        "ranks {one} and {other} use the same GPU (bus {bus})",
        "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything touches CUDA, or start fewer ranks.",
    ),
    Entry(
        "nccl_duplicate_gpu",
        r"Multiple Ranks are using the same GPU",
        "several ranks use the same GPU",
        "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything touches CUDA, or start fewer ranks.",
    ),
    Entry(
        "nccl_driver_too_old",
        r"(?i)CUDA driver version (?:found is|is insufficient)|'CUDA driver version is insufficient[^']*'",
        "the NVIDIA driver is older than this build of CUDA needs",
        "Update the driver, or install a torch built for an older CUDA.",
    ),
    Entry(
        "nccl_no_driver",
        r"Failed to find CUDA library|libcuda\.so[^ ]*: cannot open|libnvidia-ml\.so\.1",
        "the library of the NVIDIA driver was not found",
        "Start the container with the NVIDIA runtime (`--gpus all`), or install the driver.",
    ),
    Entry(
        "nccl_p2p_refused",
        r"peer access is not supported|failed to peer with device|P2P is disabled between .*GPUs|peer mapping resources"
        r"|failed to open CUDA IPC handle|cudaIpc\w+ failed",
        "two GPUs of a host may not read each other's memory",
        "Try NCCL_P2P_DISABLE=1; if that helps, check IOMMU, PCIe ACS and that all ranks see the same devices.",
    ),
    Entry(
        "nccl_nvls",
        r"NVLink SHARP|NVLS.*(?:[Ff]ailed|error)|CUDA error 401"
        r"|Cuda failure (?:401 )?'the operation cannot be performed in the present state'",
        "NVLink multicast (NVLS) could not be set up",
        "Check the fabric manager (`systemctl status nvidia-fabricmanager`); NCCL_NVLS_ENABLE=0 goes without.",
    ),
    Entry(
        "nccl_gpu_fault",
        r"Cuda failure (?:\d+ )?'(?P<why>an illegal memory access[^']*|uncorrectable (?:ECC|NVLink)[^']*"
        r"|unspecified launch"
        r"[^']*|misaligned address|hardware stack error|an illegal instruction[^']*|invalid program counter"
        r"|device-side assert triggered)'",
        "a kernel of this process failed before or during the collective ({why})",
        "Look at this rank's own error first: run it with CUDA_LAUNCH_BLOCKING=1, and see `dmesg | grep -i xid`.",
    ),
    Entry(
        "nccl_gpu_initialisation",
        r"Cuda failure (?:\d+ )?'(?:initialization error|driver shutting down|[^']*context is destroyed"
        r"|invalid device ordinal)'",
        "CUDA could not be used in this process: it was forked after CUDA began, is ending, or asked for a GPU that "
        "is not there",
        "Start processes with the spawn method, and check CUDA_VISIBLE_DEVICES against LOCAL_RANK.",
    ),
    Entry(
        "nccl_no_kernel",
        r"Cuda failure (?:\d+ )?'(?:no kernel image is available[^']*|invalid device function|the provided PTX[^']*)'",
        "this build of NCCL has no code for this GPU",
        "Install a torch built for this GPU's architecture.",
    ),
    Entry(
        "nccl_cuda",
        r"Cuda failure (?:\d+ )?'(?P<why>[^']{1,120})'",
        "a CUDA call inside NCCL failed: {why}",
        "Look at this rank's earlier messages; its GPU or an earlier kernel of it may be at fault.",
    ),
    Entry(
        "nccl_nvml",
        r"nvml\w+(?:\([^)]*\))? failed: (?P<why>.{1,80})",
        "NVIDIA's management library failed: {why}",
        "Run nvidia-smi on that host; after a driver update without a reboot versions differ.",
    ),
    Entry(
        "nccl_topology",
        r"Could not find (?:real path|NET|net id|node|gpu|any local path|rev link|id)|XML "
        r"|could not find CPU close to GPU|NVLink error : could not",
        "NCCL could not make out how this host's GPUs and adapters are connected",
        "In a virtual machine give NCCL_TOPO_FILE; unset NCCL_TOPO_FILE and NCCL_GRAPH_FILE that come from other "
        "hosts.",
    ),
)  # fmt: skip
