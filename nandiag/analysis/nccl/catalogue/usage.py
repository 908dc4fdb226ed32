"""Messages on how NCCL was called: versions, arguments, communicators, collectives (pure)."""

from nandiag.analysis.nccl.catalogue.entry import Entry

ENTRIES = (
    Entry(
        "nccl_version_mismatch",
        r"Mismatched NCCL version detected : rank (?P<one>\d+) version (?P<a>\d+) rank (?P<other>\d+) version "
        r"(?P<b>\d+)",
        "rank {one} runs NCCL {a} and rank {other} runs {b}",
        "Install the same torch and NCCL on all nodes; look for an LD_LIBRARY_PATH or LD_PRELOAD on one of them.",
    ),
    Entry(
        "nccl_version_mismatch",
        r"NCCL version mismatch with remote peer (?P<peer>\S+) \(local: (?P<a>[^,]+), remote (?P<b>[^)]+)\)",
        "{peer} runs NCCL {b}, this rank {a}",
        "Install the same torch and NCCL on all nodes; look for an LD_LIBRARY_PATH or LD_PRELOAD on one of them.",
    ),
    Entry(
        "nccl_library_mismatch",
        r"(?:NCCL library is (?:too old|not backwards)|compiled with (?:too old version of )?NCCL).*",
        "the NCCL that was loaded is not the one this program was built for",
        "Remove other copies of libnccl from LD_LIBRARY_PATH and LD_PRELOAD.",
    ),
    Entry(
        "nccl_collective_mismatch",
        r"Mismatched collective detected",
        "ranks called different collectives at the same time",
        "Find where ranks differ in the order, the shape or the dtype of their collectives.",
    ),
    Entry(
        "nccl_bad_argument",
        r"^(?P<op>\w+) : (?P<what>invalid (?:root|type|reduction)[^(]*|\w+ argument is NULL"
        r"|\w+ \S+ is not a valid pointer"
        r"|\w+ allocated on device \d+ mismatchs[^(]*)",
        "{op} was called with an argument that does not fit: {what}",
        "Check the tensors of that call: device, dtype, and that they are still alive.",
    ),
    Entry(
        "nccl_comm_gone",
        r"corrupted comm object|is in abort state|has already been destroyed|communicator was revoked"
        r"|communicator encountered"
        r"|before the previous operation returned",
        "a process group was used after it had failed or was destroyed",
        "Look at the first error of this rank; destroy process groups once, after the last collective.",
        follows=True,
    ),
    Entry(
        "nccl_send_to_self",
        r"Trying to (?:send to|recv from|recv to|receive from) self without a matching",
        "a rank sent to itself without receiving, or the other way round",
        "Check the source and destination ranks of send and recv.",
    ),
    Entry(
        "nccl_invalid_rank",
        r"Invalid rank requested : (?P<rank>\d+)/(?P<ranks>\d+)|invalid device count|Invalid device",
        "a communicator was asked for with a rank that does not exist ({rank} of {ranks})",
        "Check RANK and WORLD_SIZE.",
    ),
    Entry(
        "nccl_graph_capture",
        r"captured in a (?:CUDA )?graph|be CUDA graph captured|uncaptured or all captured",
        "collectives were captured in a CUDA graph in a way NCCL does not take",
        "Capture all collectives of a group or none, and warm up before the capture.",
    ),
    Entry(
        "nccl_setting_ignored",
        r"(?P<variable>NCCL_[A-Z0-9_]+)\S* (?:is (?:being ignored|too)|has been set|: unknown value|list contains"
        r"|is higher)"
        r"|(?:Ignoring|Unknown value for|Invalid) (?P<other>NCCL_[A-Z0-9_]+)",
        "a variable of NCCL does not fit ({variable}) and was not followed",
        "Correct it or take it out.",
        severity="info",
    ),
)  # fmt: skip
