"""Messages on InfiniBand, RoCE, sockets and network plugins (pure)."""

from nandiag.analysis.nccl.catalogue.entry import Entry

_PEER = r"Got completion from peer (?P<peer>\S+) with "
_IN_STATUS = r"(?:status=(?:\w+\()?|error )"

ENTRIES = (
    Entry(
        "nccl_ib_retries_exhausted",
        _PEER + _IN_STATUS + r"12\b",
        "the InfiniBand adapter got no answer from {peer} and gave up retrying (status 12, IBV_WC_RETRY_EXC_ERR)",
        "Check that peer's link and switch port (ibstat, error counters) and whether its process died first; for a "
        "slow fabric raise NCCL_IB_TIMEOUT.",
    ),
    Entry(
        "nccl_ib_receiver_not_ready",
        _PEER + _IN_STATUS + r"13\b",
        "{peer} was not ready to receive for too long (status 13, IBV_WC_RNR_RETRY_EXC_ERR)",
        "Look at what that rank was doing; its host may be overloaded or its process stuck.",
    ),
    Entry(
        "nccl_ib_flushed",
        _PEER + _IN_STATUS + r"5\b",
        "a transfer with {peer} was flushed after an earlier error on the same connection (status 5)",
        "Look at the first error of this connection; this one only follows from it.",
        severity="info",
        follows=True,
    ),
    Entry(
        "nccl_ib_protection",
        _PEER + _IN_STATUS + r"(?:4|10)\b",
        "the InfiniBand adapter was not allowed to reach the memory of a transfer with {peer} (a protection or remote "
        "access error)",
        "Check that PCIe ACS is off, or try NCCL_NET_GDR_LEVEL=0 to see whether GPUDirect RDMA is at fault.",
    ),
    Entry(
        "nccl_ib_completion",
        _PEER + r"(?:status=(?:(?P<name>\w+)\()?|error )(?P<status>\d+)",
        "the InfiniBand adapter reported status {status} for a transfer with {peer}",
        "Look the status up in ibv_poll_cq(3), and check link and error counters of both adapters.",
    ),
    Entry(
        "nccl_ib_port",
        r"NET/IB : (?P<device>[\w.-]+:\d+) Got (?:non-fatal )?async event ?: (?P<event>[^(]+)",
        "the InfiniBand port {device} reported an event: {event}",
        "Check that port's cable and counters (ibstat, dmesg); a link that flaps stalls the job.",
    ),
    Entry(
        "nccl_ib_fatal_event",
        r"NET/IB : (?P<device>[\w.-]+:\d+) async fatal event",
        "the InfiniBand port {device} reported a fatal event",
        "Check the adapter and its driver (dmesg, ibstat); take the node out until it is mended.",
    ),
    Entry(
        "nccl_gid_table_changed",
        r"NET/IB : (?P<device>[\w.-]+:\d+) GID table changed",
        "addresses of the RoCE port {device} changed while it was in use",
        "Look for a network manager that reconfigures the interface during the run.",
    ),
    Entry(
        "nccl_ib_locked_memory",
        r"Call to ibv_\w*(?:reg_mr|create_cq|create_qp|create_srq|alloc_pd)\w* failed.*(?:Cannot allocate memory"
        r"|errno 12)",
        "the InfiniBand adapter could not lock enough memory",
        "Raise the limit on locked memory (`ulimit -l unlimited`, in containers `--ulimit memlock=-1`).",
    ),
    Entry(
        "nccl_ib_gid_index",
        r"Call to ibv_modify_qp failed with .*(?:Invalid argument|No such device|No data available)",
        "a RoCE or InfiniBand connection could not be set up: the address (GID) of one end does not fit",
        "Take NCCL_IB_GID_INDEX out, or set it to the RoCE v2 entry that `show_gids` lists on all nodes.",
    ),
    Entry(
        "nccl_ib_unreachable",
        r"Call to ibv_modify_qp failed with .*(?:unreachable|timed out|110 |113 )",
        "an adapter cannot reach the adapter it was paired with",
        "Check the routes between the RDMA networks of the nodes; try NCCL_CROSS_NIC=0, or name the good ones in "
        "NCCL_IB_HCA.",
    ),
    Entry(
        "nccl_ib_call",
        r"Call to (?P<call>ibv_\w+) failed(?: with (?:error )?(?P<why>.{1,80}))?",
        "the InfiniBand call {call} failed ({why})",
        "Check that the device files of the adapters are in the container (/dev/infiniband) and the limit on locked "
        "memory.",
    ),
    Entry(
        "nccl_ib_mixed_links",
        r"NET/IB : (?:Attempted to (?:connect|merge) incompatible devices|Remote \S+ device is incompatible)",
        "an InfiniBand port was paired with a RoCE port",
        "Name ports of one kind in NCCL_IB_HCA, on all nodes.",
    ),
    Entry(
        "nccl_size_mismatch",
        r"collective mismatch error,? local size (?P<local>\d+) remote size (?P<remote>\d+)",
        "two ranks called collectives of different sizes ({local} and {remote} bytes)",
        "Find where ranks differ in the shape, the dtype or the order of their collectives.",
    ),
    Entry(
        "nccl_message_truncated",
        r"Message truncated : received (?P<got>[\d,]+) bytes instead of (?P<wanted>[\d,]+)",
        "a rank received {got} bytes where it waited for {wanted}",
        "Find where ranks differ in the shape or the order of their collectives, or in their NCCL version or "
        "variables.",
    ),
    Entry(
        "nccl_peer_closed",
        r"Connection closed by remote peer (?P<peer>\S+)|(?:socketProgress|Recv|recv).*Connection reset by peer",
        "the process at {peer} closed its connection: it most likely ended",
        "Look at why that rank ended; this rank only noticed it.",
        follows=True,
    ),
    Entry(
        "nccl_connection_refused",
        r"(?:[Cc]onnect to|to) (?P<peer>\S+<\d+>).*(?:refused|Software caused connection abort)",
        "{peer} refused the connection: nobody listened there",
        "Check whether that rank was still alive, and that no firewall stands between the nodes.",
    ),
    Entry(
        "nccl_unreachable",
        r"(?:[Cc]onnect to|to) (?P<peer>\S+<\d+>).*(?:timed out|No route to host|unreachable|retry count)",
        "{peer} could not be reached",
        "Check routes and firewalls, and name the interface that all nodes share in NCCL_SOCKET_IFNAME.",
    ),
    Entry(
        "nccl_no_interface",
        r"no socket interface found|No usable listening interface|No IP interface found|No interface found",
        "no network interface was found to talk through",
        "Set NCCL_SOCKET_IFNAME to an interface that is up (`ip -br addr`), or unset it.",
    ),
    Entry(
        "nccl_interface_name",
        r"no device found (?:matching|after excluding) (?P<name>.{1,60}), verify (?P<variable>NCCL_\w+)",
        "{variable} names an interface that this host does not have ({name})",
        "Set {variable} to an interface that `ip -br addr` lists on every node.",
    ),
    Entry(
        "nccl_address_family",
        r"connecting to address .*is neither AF_INET\(2\) nor AF_INET6\(10\)",
        "an address that another rank sent was none: that rank found no interface, or runs another version of NCCL",
        "Compare NCCL_SOCKET_IFNAME and the NCCL version on all nodes.",
    ),
    Entry(
        "nccl_stray_connection",
        r"wrong type \d+ != \d+|wrong magic|socketFinalizeAccept|bootstrap.*[Mm]agic",
        "a connection came in that is not of this job, or messages of two jobs got mixed",
        "Look for a port scanner or a second job on the same port, and raise net.core.somaxconn where ranks are many.",
    ),
    Entry(
        "nccl_plugin",
        r"Failed to initialize any NET plugin|NET/OFI (?P<why>.{1,120})|NET/Plugin.*(?:[Ff]ailed|incompatible)",
        "the network plugin could not be used ({why})",
        "Check the plugin's own version and its variables; NCCL_NET_PLUGIN=none leaves it out.",
    ),
    Entry(
        "nccl_mixed_adapters",
        r"Detected mixed local (?:Net|CollNet) device counts across ranks",
        "the ranks do not see the same number of network adapters",
        "Make nodes and containers alike, or set NCCL_IGNORE_NET_MISMATCH=1 where that is meant.",
    ),
    Entry(
        "nccl_sharp",
        r"\bSHARP (?:init|coll|reg)\w* .*(?:fail|error)|\bsharp_\w+",
        "in-network reduction (SHARP) could not be used",
        "Set NCCL_COLLNET_ENABLE=0, or mend the SHARP daemon.",
    ),
)  # fmt: skip
