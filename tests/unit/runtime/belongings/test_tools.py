"""What a step does to objects of Python's own library is there once, wherever the script keeps them."""

import configparser
import contextlib
import hashlib
import hmac
import io
import sched
import time
import zipfile
import zlib
from email.message import Message

import pytest

from tests.faults.acting import looked, train


def archive():
    return zipfile.ZipFile(io.BytesIO(), "w")


def sections():
    found = configparser.ConfigParser()
    found.add_section("all")
    return found


TOOLS = {
    "scheduler": (
        lambda: sched.scheduler(time.time, time.sleep),
        lambda one: one.enter(1, 1, print),
        lambda one: len(one.queue),
    ),
    "sections": (
        sections,
        lambda one: one.set("all", str(len(one["all"])), "1"),
        lambda one: len(one["all"]),
    ),
    "message": (Message, lambda one: one.add_header("step", "1"), len),
    "stack": (contextlib.ExitStack, lambda one: one.callback(len, ""), lambda one: len(one._exit_callbacks)),
    "archive": (
        archive,
        lambda one: one.writestr(zipfile.ZipInfo("name"), b"1"),
        lambda one: len(one.namelist()),
    ),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("tool", TOOLS)
def test_what_a_step_does_to_a_tool_is_there_once(tool, work):
    make, use, count = TOOLS[tool]
    worker, one = work(), make()
    steps = train(lambda: use(one))
    assert looked(worker)[0] == "found"
    assert count(one) == steps


SUMS = {
    "sha256": (hashlib.sha256, lambda one: one.digest()),
    "blake2": (hashlib.blake2b, lambda one: one.digest()),
    "hmac": (lambda: hmac.new(b"key", digestmod="sha256"), lambda one: one.digest()),
    "zlib": (zlib.compressobj, lambda one: one.flush()),
}


@pytest.mark.parametrize("way", SUMS)
def test_what_a_step_adds_to_a_sum_of_bytes_is_added_once(way, work):
    make, told = SUMS[way]
    worker, one, other = work(), make(), make()

    def add(into):
        getattr(into, "compress" if way == "zlib" else "update")(b"step")

    steps = train(lambda: add(one))
    for _ in range(steps):
        add(other)
    assert looked(worker)[0] == "found"
    assert told(one) == told(other)
