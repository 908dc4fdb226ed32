"""NCCL's logs: each kind of line as versions 2.19 to 2.30 and torch's watchdog write it, and whatever else may come."""

import random
from pathlib import Path

import pytest

from nandiag.analysis.nccl import Reading, summary_of
from nandiag.analysis.nccl.catalogue import ENTRIES, meaning_of
from nandiag.analysis.nccl.findings import findings_of
from nandiag.analysis.nccl.line import parse
from nandiag.analysis.nccl.read import transport

HEAD = "node1:811:902 [3] NCCL INFO "


def read(text, *, ranks=None, block=None, name=(None, None)):
    raw = text if isinstance(text, bytes) else text.encode()
    reading = Reading()
    reading.begin(*name)
    for start in range(0, len(raw), block or max(len(raw), 1)):
        reading.feed(raw[start : start + (block or len(raw))])
    reading.end()
    return summary_of(reading.facts, ranks or {})


def only(text, **options):
    (trouble,) = read(text, **options).troubles
    return trouble


LINES = """
gpu-1:7038:7053 [0] misc/socket.cc:49 NCCL WARN socketProgress: broken
= WARN gpu-1 7038 misc/socket.cc:49 None
[2025-06-20 02:14:03] ubuntu:33207:33210 [0] allocator.cc:79 NCCL WARN Cuda failure 711 'x'
= WARN ubuntu 33207 allocator.cc:79 2025-06-20 02:14:03
[2026-05-05 06:16:47] n:1:2 [3] plugin/net.cc:334 (ncclNetInit) NCCL WARN Failed to initialize any NET plugin
= WARN n 1 plugin/net.cc:334 2026-05-05 06:16:47
n:1:2 [3] NCCL INFO Connected all rings
= INFO n 1 None None
[1,3]<stdout>:smc-gpu-03:29881:30401 [0] init.cc:497 NCCL WARN Duplicate
= WARN smc-gpu-03 29881 init.cc:497 None
(pid=2918546) molgpu01:2918546:2918546 [0] NCCL INFO Using network Socket
= INFO molgpu01 2918546 None None
  | 2024-11-28T07:42:11.527Z | algo-1:17778:17848 [5] nccl_ofi_init:274 NCCL WARN NET/OFI Couldn't open CQ
= WARN algo-1 17778 nccl_ofi_init:274 2024-11-28T07:42:11.527
[1] misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'
= WARN None None misc/shmutils.cc:103 None
""".strip().splitlines()


@pytest.mark.parametrize(("raw", "expected"), list(zip(LINES[::2], LINES[1::2], strict=True)))
def test_a_line_of_any_version_is_taken_apart(raw, expected):
    line = parse(raw.encode())
    assert f"= {line.level} {line.host} {line.pid} {line.place} {line.time}" == expected


CALL = "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=46, NumelOut=46, Timeout(ms)=600000)"
OLD_CALL = "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, Timeout(ms)=600000)"


@pytest.mark.parametrize(
    ("head", "call"),
    [
        ("[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0]", CALL),
        ("[E ProcessGroupNCCL.cpp:458] [Rank 0]", OLD_CALL),
    ],
)
def test_a_time_out_that_torch_saw_is_told_with_rank_collective_and_number(head, call):
    end = "ran for 600060 milliseconds before timing out."
    trouble = only(f"{head} Watchdog caught collective operation timeout: {call} {end}")
    assert trouble.slug == "nccl_watchdog_timeout"
    assert trouble.ranks == (0,)
    assert "collective allreduce number 1580 did not end within 600 s" in trouble.text


def test_ranks_with_the_same_time_out_are_one_trouble():
    line = (
        "[rank{0}]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=1000) ran for 1002 milliseconds.\n"
    )
    assert only("".join(line.format(rank) for rank in (0, 2, 3))).ranks == (0, 2, 3)


@pytest.mark.parametrize(
    ("via", "kind"),
    [
        ("P2P/IPC/read", "P2P/IPC"),
        ("P2P/CUMEM", "P2P/CUMEM"),
        ("P2P/direct pointer", "P2P/direct"),
        ("P2P/indirect/3[3]", "P2P/indirect"),
        ("SHM/direct/direct", "SHM"),
        ("SHM/direct", "SHM"),
        ("NET/Socket/0", "NET/Socket"),
        ("NET/IB/9/GDRDMA/Shared", "NET/IB/GDRDMA"),
        ("NET/IBext_v8/3(7)/GDRDMA", "NET/IBext_v8/GDRDMA"),
        ("NET/IB/2", "NET/IB"),
        ("COLLNET/SHARP/0", "COLLNET/SHARP"),
    ],
)
def test_a_transport_has_a_kind_without_its_device(via, kind):
    assert transport(via) == kind


def test_the_choices_of_nccl_are_read():
    told = read(
        "NCCL version 2.26.2+cuda12.6\n"
        f"{HEAD}NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_bond_2:1/RoCE [RO]; OOB ib0:10.0.0.1<0>\n"
        f"{HEAD}Using network IB\n"
        f"{HEAD}ncclCommInitRankConfig comm 0x8ec0 rank 6 nranks 16 cudaDev 6 nvmlDev 6 busId c8 commId 0x4 - Init "
        f"COMPLETE\n"
        f"{HEAD}NCCL_IB_DISABLE set by environment to 0.\n"
        f"{HEAD}16 coll channels, 0 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer\n"
        f"{HEAD}Channel 00/0 : 15[7] -> 0[0] [send] via NET/IB/0/GDRDMA\n"
        f"{HEAD}Channel 01/0 : 15[7] -> 0[0] [send] via NET/IB/1/GDRDMA\n"
        f"{HEAD}Channel 01/0 : 1[51000] -> 2[52000] [send] via P2P/CUMEM/read\n"
        f"{HEAD}Channel 09 : 6[6] -> 7[7] via SHM/direct/direct\n"
    )
    assert told.versions == ("2.26.2+cuda12.6",)
    assert told.networks == ("IB",)
    assert told.adapters == ("mlx5_0:1/IB", "mlx5_bond_2:1/RoCE")
    assert told.settings == ("NCCL_IB_DISABLE=0",)
    assert told.nvls
    assert [(link.transport, link.links, link.channels) for link in told.links] == [
        ("NET/IB/GDRDMA", 1, 2),
        ("P2P/CUMEM", 1, 1),
        ("SHM", 1, 1),
    ]
    assert told.troubles == ()


def test_a_chain_hangs_on_the_warning_of_its_thread_in_either_form():
    trouble = only(
        "\nn:1:2 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.2<4576> failed : Connection "
        "refused\n"
        "n:1:9 [0] NCCL INFO transport.cc:33 -> 7\n"
        "n:1:2 [0] NCCL INFO misc/socket.cc:564 -> 2\n"
        "n:1:2 [0] NCCL INFO proxy.cc:874 (ncclProxyConnect) -> 2 [Progress Thread]\n"
    )
    assert (trouble.slug, trouble.code) == ("nccl_connection_refused", 2)
    assert trouble.chain == ("misc/socket.cc:564", "proxy.cc:874")


def test_a_chain_without_a_warning_is_a_trouble_and_progress_is_none():
    trouble = only("n:1:2 [0] NCCL INFO transport/net.cc:1298 -> 6\nn:1:3 [0] NCCL INFO group.cc:96 -> 7\n")
    assert (trouble.slug, trouble.code, trouble.severity) == ("nccl_result_6", 6, "warning")


def test_a_later_error_of_another_kind_does_not_hang_on_the_first_warning():
    told = read(
        "n:1:2 [0] alloc.h:1 NCCL WARN Cuda failure 'out of memory'\nn:1:2 [0] NCCL INFO p2p.cc:2 -> 1\n"
        "n:1:2 [0] NCCL INFO socket.cc:47 -> 3\n"
    )
    assert {(one.slug, one.code) for one in told.troubles} == {("nccl_gpu_out_of_memory", 1), ("nccl_result_3", 3)}


def test_a_warning_that_speaks_of_a_version_is_counted_once():
    trouble = only("n:1:2 [0] init.cc:8 NCCL WARN Mismatched NCCL version detected : rank 2 version 23001\n")
    assert trouble.count == 1


def test_of_two_warnings_on_one_failure_the_error_hangs_on_the_trouble_that_both_are():
    full = "error: No space left on device (28)"
    trouble = only(
        f"n:1:2 [0] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Ab to 3 bytes, {full}\n"
        f"n:1:2 [0] misc/shmutils.cc:130 NCCL WARN Error while creating shared memory segment, {full}\n"
        "n:1:2 [0] NCCL INFO transport/shm.cc:590 -> 2\n"
    )
    assert (trouble.count, trouble.code, trouble.chain) == (2, 2, ("transport/shm.cc:590",))


SAID = [tuple(line.split(": ", 1))[::-1] for line in (Path(__file__).parent / "warnings.txt").read_text().splitlines()]


@pytest.mark.parametrize(("message", "slug"), SAID)
def test_a_known_message_has_a_sentence_and_a_mend(message, slug):
    trouble = only(f"n:1:2 [0] file.cc:1 NCCL WARN {message}\n")
    assert trouble.slug == slug
    assert trouble.message == message
    assert trouble.text
    assert trouble.mend
    assert "?" not in trouble.text + trouble.mend


def test_each_entry_ends_in_a_mend_and_none_is_a_sentence_by_itself():
    for entry in ENTRIES:
        assert entry.mend.endswith("."), entry.slug
        assert not entry.text.endswith("."), entry.slug
        assert entry.slug.startswith("nccl_")


def test_an_unknown_warning_is_kept_in_its_own_words():
    trouble = only("n:1:2 [0] new.cc:12 NCCL WARN the flux capacitor is \x1b[31mred\x1b[0m\x07\n")
    assert trouble.slug == "nccl_unknown"
    assert trouble.text == "the flux capacitor is red"
    assert trouble.mend is None
    assert meaning_of(trouble.text) is None


def test_a_process_is_a_rank_by_the_files_of_the_run():
    text = "n:1:2 [0] a.cc:1 NCCL WARN Bootstrap : no socket interface found\n"
    assert only(text, ranks={("n", 1): 5, ("m", 1): 6}).ranks == (5,)
    assert only(text, ranks={("other-name-in-the-container", 1): 4}).ranks == (4,)
    assert only(text, ranks={("m", 1): 6, ("k", 2): 7}).ranks == ()


def test_without_a_run_a_process_is_the_rank_that_nccl_told_of_its_largest_communicator():
    text = (
        f"{HEAD}comm 0x1 rank 0 nranks 2 cudaDev 6 nvmlDev 6 busId c8 commId 0x4 - Init COMPLETE\n"
        f"{HEAD}[Rank 6] ncclCommInitRank comm 0x2 rank 6 nranks 16 cudaDev 6 nvmlDev 6 busId c8 commId 0x4 - Init "
        f"START\n"
        f"{HEAD}comm 0x3 rank 1 nranks 4 cudaDev 6 nvmlDev 6 busId c8 commId 0x4 - Init COMPLETE\n"
        "node1:811:950 [3] a.cc:1 NCCL WARN Bootstrap : no socket interface found\n"
    )
    assert only(text).ranks == (6,)


def test_the_name_of_a_file_tells_the_process_of_lines_that_do_not():
    assert only("a.cc:1 NCCL WARN Bootstrap : no socket interface found", name=("n", 8), ranks={("n", 8): 3}).ranks == (
        3,
    )


def test_blocks_may_cut_lines_anywhere():
    text = "".join(
        f"n:1:2 [0] f.cc:1 NCCL WARN {message}\n{HEAD}Channel 01/0 : 1[1] -> 2[2] via SHM/direct\n"
        for message, _ in SAID
    )
    whole = read(text)
    for block in (1, 7, 64, 1000):
        assert read(text, block=block) == whole


def test_a_torn_last_line_counts():
    assert (
        only("n:1:2 [0] a.cc:1 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device a4").slug
        == "nccl_duplicate_gpu"
    )


def test_binary_garbage_and_endless_lines_do_no_harm():
    rng = random.Random(3)  # noqa: S311 - garbage, the same each time
    warn = b"\nn:1:2 [0] a.cc:1 NCCL WARN Bootstrap : no socket interface found\n"
    endless = b"n:1:2 [0] NCCL INFO " + b"x" * 100_000 + b" NCCL WARN " + b"NCCL INFO Channel 00" * 5_000
    raw = rng.randbytes(50_000) + warn + endless + warn + b"NCCL " * 20_000 + b"\x00\xff" * 999 + warn
    told = read(raw, block=4096)
    assert "nccl_no_interface" in {one.slug for one in told.troubles}
    assert all(len(one.message) <= 1000 and one.message.isprintable() for one in told.troubles)


def test_what_is_kept_is_bounded():
    rng = random.Random(1)  # noqa: S311 - garbage, the same each time
    text = "".join(f"h{n}:{n}:2 [0] a.cc:1 NCCL WARN {rng.randbytes(9).hex()} {'x' * 3000}\n" for n in range(3_000))
    told = read(text, block=1 << 16)
    assert len(told.troubles) == 40
    assert told.left_out > 900


def test_other_lines_of_nccl_are_counted():
    told = read(f"{HEAD}Connected all rings\nstep 3 loss 0.1\n{HEAD}Setting affinity for GPU 3 to ff\n")
    assert (told.lines, told.other) == (3, 2)


def findings(text):
    return {one.slug: one for one in findings_of(read(text))}


def test_the_end_of_a_peer_is_a_warning_only_where_nothing_else_is():
    closed = "n:1:2 [0] a.cc:1 NCCL WARN socketProgress: Connection closed by remote peer node2<42830>\n"
    cause = "m:1:2 [0] a.cc:1 NCCL WARN Cuda failure 'out of memory'\n"
    assert findings(closed)["nccl_peer_closed"].severity == "warning"
    both = findings(closed + cause)
    assert both["nccl_peer_closed"].severity == "info"
    assert both["nccl_gpu_out_of_memory"].severity == "warning"


def test_sockets_beside_infiniband_are_told():
    socket = f"{HEAD}Channel 00/0 : 1[1] -> 8[0] [send] via NET/Socket/0\n"
    assert "nccl_socket_despite_ib" not in findings(socket)
    assert (
        findings(f"{HEAD}NET/IB : Using [0]mlx5_0:1/IB ; OOB e:1<0>\n{socket}")["nccl_socket_despite_ib"].severity
        == "warning"
    )


def test_two_versions_are_told():
    assert "nccl_versions_differ" in findings("NCCL version 2.21.5+cuda12.4\nNCCL version 2.27.3+cuda12.9\n")


def test_the_version_that_torch_tells_in_an_error_is_no_other_version():
    text = "NCCL version 2.19.3+cuda12.3\nRuntimeError: remote process exited, NCCL version 2.19.3\n"
    assert read(text).versions == ("2.19.3+cuda12.3",)
    assert "nccl_versions_differ" not in findings(text)
    assert read("RuntimeError: NCCL error, NCCL version 2.19.3").versions == ("2.19.3",)


def test_a_line_without_end_is_not_kept():
    reading = Reading()
    reading.begin()
    for _ in range(20):
        reading.feed(b"n:1:2 [0] NCCL WARN x" * 50_000)
        assert len(reading._rest) <= 16_384
    reading.end()
    assert reading.facts.bytes == 20 * 50_000 * 21
    assert reading.facts.lines == 1


def test_many_different_links_are_not_kept_without_end():
    links = (f"{HEAD}Channel 00/0 : {n}[0] -> {n + 1}[0] via P2P/IPC\n" for n in range(110_000))
    reading = Reading()
    reading.begin()
    reading.feed("".join(links).encode())
    assert len(reading._links) == 100_000
