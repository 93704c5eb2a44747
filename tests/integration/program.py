"""What the tests of the `hifc` program share: running it and judging how it failed.

The environment names the program (HIFC_PROGRAM), the folder of the random-weight models
(HIFC_TEST_MODEL_DIR) and that of the downloaded ones (HIFC_MODEL_DIR).
"""

import fcntl
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["HIFC_PROGRAM"]
MODELS = pathlib.Path(os.environ["HIFC_TEST_MODEL_DIR"])
DOWNLOADED = pathlib.Path(os.environ["HIFC_MODEL_DIR"])
LICENSES = pathlib.Path("/usr/share/common-licenses")
TIMEOUT_S = 300


def model(name):
    made = MODELS / f"{name}.gguf"
    return str(made if made.exists() else DOWNLOADED / f"{name}.gguf")


def hifc(*arguments, text=None, environment=None):
    """Runs the program to its end; output is bytes, since text may end inside a character."""
    return subprocess.run(
        [PROGRAM, *map(str, arguments)],
        input=b"" if text is None else text,
        capture_output=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **(environment or {})},
        check=False,
    )


class ProgramTest(unittest.TestCase):
    """Each test has an empty folder self.folder."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hifc-e2e-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.flash = self.folder / "kv"

    def run_command(self, name="llama-32l", *more, prompt="A few words of text."):
        given = [str(word) for word in more]
        prompt = [] if prompt is None or {"-p", "-f"} & set(given) else ["-p", prompt]
        count = [] if "-n" in given else ["-n", "4"]
        return ["run", "-m", model(name), "--raw", "--temp", "0", "--threads", "1",
                *count, *prompt, *given]

    def succeed(self, *arguments, **options):
        done = hifc(*arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr.decode(errors="replace"))
        return done

    def refused(self, *arguments, words=(), status=1, **options):
        """One line that names what is wrong, and nothing but that."""
        done = hifc(*arguments, **options)
        error = done.stderr.decode(errors="replace")
        self.assertEqual(done.returncode, status, error)
        self.assertEqual(done.stdout.strip(), b"")
        self.assertEqual(len(error.splitlines()), 1, error)
        self.assertTrue(error.startswith("hifc: "), error)
        for word in words:
            self.assertIn(str(word), error)
        return error

    def report_of(self, *arguments, **options):
        path = self.folder / "report.json"
        self.succeed(*arguments, "--report", path, **options)
        return json.loads(path.read_text())

    def leftovers(self):
        return sorted(self.flash.rglob("*")) if self.flash.exists() else []

    def locked(self):
        """Takes the flash folder as another process would."""
        self.flash.mkdir(mode=0o700)
        lock = open(self.flash / "hifc.lock", "w", encoding="ascii")
        self.addCleanup(lock.close)
        fcntl.flock(lock, fcntl.LOCK_EX)

    def start(self, *arguments):
        child = subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)

        def stop():
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)
            child.wait()
            child.stdout.close()
            child.stderr.close()
        self.addCleanup(stop)
        return child
