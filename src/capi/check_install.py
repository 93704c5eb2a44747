#!/usr/bin/env python3
"""Installs libhifc and builds a program with it as docs/c-api.md says:
check_install.py CMAKE BUILD_FOLDER C_COMPILER SOURCE.c"""

import os
import pathlib
import subprocess
import sys
import tempfile


def output(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True,
                          text=True, **options).stdout


def main():
    cmake, build, compiler, source = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="hifc-install-") as folder:
        prefix = pathlib.Path(folder) / "prefix"
        output(cmake, "--install", build, "--component", "libhifc", "--prefix", prefix)
        package_files = next(prefix.rglob("pkgconfig"))
        environment = {**os.environ, "PKG_CONFIG_PATH": str(package_files)}
        for package, shared in ("hifc", True), ("hifc-static", False):
            flags = output("pkg-config", "--cflags", package, env=environment).split()
            if len(flags) != 1 or not (pathlib.Path(flags[0][2:]) / "hifc/hifc.h").exists():
                sys.exit(f"{package}: --cflags are {flags}, not the one folder of the header")
            program = pathlib.Path(folder) / package
            words = output("pkg-config", "--cflags", "--libs", package, env=environment).split()
            output(compiler, "-std=c11", source, *words, "-o", program)
            libraries = output("readelf", "-d", program)
            if ("libhifc.so" in libraries) != shared:
                sys.exit(f"{package}: the program needs\n{libraries}")
            path = str(package_files.parent) if shared else ""
            output(program, pathlib.Path(folder) / "store",
                   env={**os.environ, "LD_LIBRARY_PATH": path})


if __name__ == "__main__":
    main()
