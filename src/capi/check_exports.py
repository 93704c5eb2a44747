#!/usr/bin/env python3
"""Checks that a shared library shows what its header declares: check_exports.py LIBRARY HEADER."""

import pathlib
import re
import subprocess
import sys


def exported(library):
    lines = subprocess.run(["nm", "--dynamic", "--defined-only", library], check=True,
                           capture_output=True, text=True).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


def declared(header):
    return set(re.findall(r"HIFC_API [\w *]*?\b(hifc_\w+)\(", pathlib.Path(header).read_text()))


def main():
    library, header = sys.argv[1:]
    shown, named = exported(library), declared(header)
    for name in sorted(shown - named):
        print(f"{library} exports {name}, which {header} does not declare")
    for name in sorted(named - shown):
        print(f"{library} does not export {name}")
    return 0 if shown == named and named else 1


if __name__ == "__main__":
    sys.exit(main())
