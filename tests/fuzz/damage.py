"""Ways in which a run folder can be damaged or forged: each takes the files of a run and changes some of them."""

import json
import os
import re
import socket
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e<script>alert(1)</script>`| [x](javascript:1)\r\n\x00"
MOST = 1 << 25  # of a file, in bytes: what multiplies lines may be drawn again and again
VALUES = [
    None, True, False, 0, -1, 2**63, 10**30, 10**4000, 1e308, -0.0, "", "x", EVIL, "\ud800", "nan", [], {}, [[]],
    [None], {"a": 1}, "9" * 5000, ["x"] * 50, {"kind": "nan"}, -(2**63),
]  # fmt: skip
TOKENS = [
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"-1e999",
    b"1" * 5000,
    b"{",
    b"[" * 30_000,
    b"\\ud800",
    b'"',
    b"\\u0000",
]


def runs():
    """The files of each recorded run, by path below its folder."""
    found = {}
    for run in sorted(GOLDEN.glob("*/run")):
        found[run.parent.name] = {
            str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()
        }
    return found


class Folder:
    """The files of one run, to be damaged and then written; ``whole`` are the rank files that nobody touched."""

    def __init__(self, name, recorded, dice):
        self.files = dict(recorded[name])
        self.recorded = recorded
        self.dice = dice
        self.special = {}
        self.touched = set()

    def some(self, ending=""):
        """Pick a file, a rank file most of the time."""
        names = sorted(name for name in self.files if name.endswith(ending)) or ["ranks/r00000-a0-p1.jsonl"]
        self.files.setdefault(names[0], b"")
        likely = [name for name in names if name.startswith("ranks/")]
        name = self.dice.choice(likely if likely and self.dice.random() < 0.8 else names)
        self.touched.add(name)
        return name

    def write(self, folder):
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name not in self.special:
                path.write_bytes(content)
        for name, make in self.special.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            make(path)

    def whole_ranks(self):
        """The ranks whose newest file was left as it is, if no other file speaks for the same rank."""
        names = [name for name in self.files if re.fullmatch(r"ranks/r\d{5,6}-a\d+-p\d+\.jsonl", name)]
        by_rank = {}
        for name in names:
            by_rank.setdefault(int(name[7 : name.index("-")]), []).append(name)
        return {
            rank
            for rank, own in by_rank.items()
            if rank < 1000
            and len(own) == 1
            and own[0] not in self.touched
            and b'"kind":"attached"' in self.files[own[0]]
        }


def cut(run):
    name = run.some()
    run.files[name] = run.files[name][: run.dice.randrange(len(run.files[name]) + 1)]


def flip(run):
    name = run.some()
    content = bytearray(run.files[name] or b"x")
    for _ in range(run.dice.randrange(1, 20)):
        content[run.dice.randrange(len(content))] = run.dice.randrange(256)
    run.files[name] = bytes(content)


def insert(run):
    name = run.some()
    at = run.dice.randrange(len(run.files[name]) + 1)
    piece = run.dice.choice([*TOKENS, run.dice.randbytes(200), b"\n", b"\r\n", b"\x00" * 300, EVIL.encode()])
    run.files[name] = run.files[name][:at] + piece + run.files[name][at:]


def encode(run):
    name = run.some()
    text = run.files[name].decode(errors="replace")
    run.files[name] = text.encode(
        run.dice.choice(["utf-16", "utf-32", "utf-8-sig", "utf-7", "cp037"]), errors="replace"
    )


def huge_line(run):
    name = run.some()
    filler = run.dice.choice([b"x", b"[", b'{"a":', b'"', b"\x00", b"9"])
    run.files[name] += (
        filler * run.dice.choice([10_000, 600_000]) + run.dice.choice([b"", b"\n"]) + run.files[name][:500]
    )


def nest(run):
    name = run.some()
    depth = run.dice.choice([50, 900, 5_000])
    deep = '{"a":' * depth + "1" + "}" * depth
    run.files[name] += (
        f'{{"kind":"looked","seq":7,"time":1.0,"outcome":"found","method":"replay","step":0,"facts":{deep}}}\n'.encode()
    )


def lines(run):
    name = run.some(".jsonl")
    every = run.files[name].splitlines(keepends=True)
    way = run.dice.randrange(4)
    if way == 0:
        run.dice.shuffle(every)
    elif way == 1:
        times = run.dice.randrange(2, 200)
        every = every * times if times * len(run.files[name]) < MOST else every
    elif way == 2 and every:
        del every[run.dice.randrange(len(every))]
    else:
        every = [line.rstrip(b"\n") + b"\r\n" for line in every]
    run.files[name] = b"".join(every)


def value(run):
    """Another value for one field of one object, somewhere in it."""
    name = run.some()
    every = run.files[name].splitlines() if name.endswith(".jsonl") else [run.files[name]]
    at = run.dice.randrange(len(every) or 1)
    try:
        data = json.loads(every[at])
        holder, key = run.dice.choice(list(_places(data)))
        holder[key] = run.dice.choice(VALUES)
        every[at] = json.dumps(data).encode()
    except (ValueError, IndexError, RecursionError):
        return
    run.files[name] = b"\n".join(every) + b"\n"


def _places(data):
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, inner in list(pairs):
        yield data, key
        yield from _places(inner)


def newer(run):
    name = run.some(".jsonl")
    kind = run.dice.choice(["comet", "harm", EVIL, "looked" * 50, "", "history"])
    event = {"kind": kind, "seq": 99, "time": 1.0, "schema": run.dice.choice(VALUES), "what": "aura", "step": 3}
    run.files[name] += json.dumps(event).encode() + b"\n"


def evil_texts(run):
    """Control sequences and markup in every text of a file."""
    name = run.some()
    try:
        every = [json.loads(line) for line in run.files[name].splitlines()]
        places = [list(_places(data)) for data in every]
    except (ValueError, RecursionError):
        return
    for found in places:
        for holder, key in found:
            if isinstance(holder[key], str) and key not in {"kind", "what", "outcome", "phase", "action", "method"}:
                holder[key] += EVIL
    run.files[name] = b"".join(json.dumps(data).encode() + b"\n" for data in every)


def another_process(run):
    """A second file of the same rank: of another attempt, another process, or of a rank that does not exist."""
    name = run.some(".jsonl")
    attempt = run.dice.randrange(3)
    rank = int(name[7:12]) if name[7:12].isdigit() else 0
    rank = run.dice.choice([rank, rank, 1, 99_999])
    copy = f"ranks/r{rank:05d}-a{attempt}-p{run.dice.randrange(10**6)}.jsonl"
    run.touched.add(copy)
    run.files[copy] = run.files[name]


def another_run(run):
    other = run.recorded[run.dice.choice(sorted(run.recorded))]
    for name in run.dice.sample(sorted(other), k=min(3, len(other))):
        run.touched.add(name)
        run.files[name] = other[name]


def foreign(run):
    names = [
        "ranks/core",
        "ranks/r1.jsonl",
        "ranks/r00000-a0-p1.jsonl~",
        "ranks/\udcff.jsonl",
        "agents/x.json",
        "nccl/a.b.log",
    ]
    names += [
        f"ranks/{'n' * 200}.jsonl",
        "ranks/r999999999-a0-p1.jsonl",
        "ranks/r100000-a0-p1.jsonl",
        "report.json",
        "stopped",
    ]
    for name in run.dice.sample(names, k=2):
        run.files[name] = run.dice.choice([b"", b"{}", b"[]", run.dice.randbytes(50), b"\x80\x04\x95pickle."])


def many(run):
    for number in range(run.dice.randrange(10, 200)):
        run.files[f"{run.dice.choice(['ranks', 'agents'])}/junk{number}.{run.dice.choice(['json', 'jsonl'])}"] = b"{}"


def special(run):
    """A link, a FIFO, a folder, a socket or a file of a gigabyte of nothing in the place of a file."""
    name = run.dice.choice([run.some(), "report.json", "run.json", run.some(".jsonl").replace(".jsonl", ".pulse")])
    ways = [
        os.mkfifo,
        _folder,
        _endless,
        lambda path: path.symlink_to("/etc/passwd"),
        lambda path: path.symlink_to(path),
        _socket,
    ]
    run.touched.add(name)
    run.special[name] = run.dice.choice(ways)


def _folder(path):
    path.mkdir()


def _endless(path):
    path.touch()
    os.truncate(path, 1 << 30)


def _socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        try:
            made.bind(str(path))
        except OSError:  # a path that is too long for a socket
            path.touch()


def lose(run):
    name = run.some()
    del run.files[name]


WAYS = [
    cut, flip, insert, encode, huge_line, nest, lines, value, value, value, newer, evil_texts, another_process,
    another_run, foreign, many, special, lose,
]  # fmt: skip
