"""`hifc bench swap`: its report, and that nothing of it stays."""

import json
import signal
import unittest

import program

WAYS = ["buffered_4k", "buffered_block", "direct_sync", "hifc"]
POLICIES = ["lru", "fifo", "scan", "cost"]
SMALL = ["--seconds", "0.05", "--sequences", "6", "--groups", "4",
         "--layers", "3", "--block-kib", "64", "--accesses", "20", "--passes", "2"]


class Swap(program.ProgramTest):
    def bench(self, *more):
        done = program.hifc("bench", "swap", "--flash", self.flash, *SMALL, "--rounds", "1",
                            *more)
        if b"without O_DIRECT" in done.stderr:
            self.skipTest("no O_DIRECT here")
        return done

    def test_report(self):
        done = self.bench("--json")
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        report = json.loads(done.stdout)
        self.assertEqual(report["bench"], "swap")
        rows = {row["name"]: row for row in report["rows"]}
        names = [f"swap.{way}.{policy}" for way in WAYS for policy in POLICIES]
        self.assertEqual(list(rows), ["swap.device", *names])
        self.assertGreater(rows["swap.device"]["metrics"]["gbps"], 0)
        for name in names:
            metrics = rows[name]["metrics"]
            self.assertGreater(metrics["gbps"], 0, name)
            self.assertGreater(metrics["speedup"], 0, name)
        for policy in POLICIES:
            row = rows[f"swap.hifc.{policy}"]
            self.assertEqual(row["target"], {"speedup": ">= 8", "speedup_block": ">= 3"})
            rates = {rows[f"swap.{way}.{policy}"]["metrics"]["hit_rate"] for way in WAYS}
            self.assertEqual(len(rates), 1)
        self.assertEqual(rows["swap.buffered_4k.lru"]["metrics"]["speedup"], 1)
        self.assertEqual(self.leftovers(), [])

    def test_memory_decides_what_policies_hit(self):
        for share, least, most in [("0", 0, 0), ("1", 0.5, 1)]:
            done = self.bench("--json", "--memory", share)
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            for row in json.loads(done.stdout)["rows"][1:]:
                self.assertGreaterEqual(row["metrics"]["hit_rate"], least, row["name"])
                self.assertLessEqual(row["metrics"]["hit_rate"], most, row["name"])

    def test_table(self):
        done = self.bench()
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertIn("swap.hifc.cost", done.stdout.decode())

    def test_interrupted(self):
        child = self.start("bench", "swap", "--flash", self.flash, *SMALL, "--rounds", "100")
        while b"swap" not in (line := child.stderr.readline()):
            if b"without O_DIRECT" in line:
                self.skipTest("no O_DIRECT here")
            self.assertNotEqual(line, b"")
        child.send_signal(signal.SIGINT)
        output, error = child.communicate(timeout=program.TIMEOUT_S)
        self.assertEqual(child.returncode, 130, error.decode())
        self.assertEqual(output, b"")
        self.assertEqual(self.leftovers(), [])

    def test_refused(self):
        self.refused("bench", "swap", words=["--flash"], status=2)
        self.refused("bench", "swap", "--flash", self.flash, "--block-kib", "6",
                     words=["--block-kib", "6", "multiple of 4"], status=2)
        self.refused("bench", "swap", "--flash", self.flash, "--sequences", "4096", "--groups",
                     "4096", words=[self.flash, "free"])
        self.refused("bench", "swap", "--flash", "/proc/nothing", words=["/proc/nothing"])


if __name__ == "__main__":
    unittest.main()
