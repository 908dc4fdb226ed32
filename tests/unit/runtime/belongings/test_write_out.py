"""A run that is stopped leaves the script's open files as Python would: with all that was written to them."""

import bz2
import gzip
import lzma
import subprocess
import sys
import zipfile

SCRIPT = """
import bz2, gzip, lzma, os, sys, zipfile
from nandiag.runtime.belongings.world.files import write_out

class Log:
    def __init__(self, place):
        self.files = [kind.open(f"{place}/{kind.__name__}", "wt") for kind in (gzip, bz2, lzma)]
        self.files.append(open(f"{place}/plain", "w"))
        self.zip = zipfile.ZipFile(open(f"{place}/zip", "wb"), "w")  # in a file of the script's own
        self.read = zipfile.ZipFile(f"{place}/before.zip")

log = Log(sys.argv[1])
for file in log.files:
    file.write("line\\n" * 9)
log.zip.writestr("a", "text")
write_out()
os._exit(0)
"""


def test_what_lies_in_buffers_is_written_and_archives_are_ended(tmp_path):
    zipfile.ZipFile(tmp_path / "before.zip", "w").close()
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], check=True, timeout=60)
    text = "line\n" * 9
    assert (tmp_path / "plain").read_text() == text
    assert [kind.open(tmp_path / kind.__name__, "rt").read() for kind in (gzip, bz2, lzma)] == [text] * 3
    assert zipfile.ZipFile(tmp_path / "zip").read("a") == b"text"
