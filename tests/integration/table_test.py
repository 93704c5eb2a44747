#!/usr/bin/env python3
"""`hifc bench table`: its rows, what each of them is told to be, and that nothing of it stays."""

import json
import signal
import unittest

import program

MODEL = "llama-hd128"
CONTEXT, ROUNDS, TOKENS = 600, 1, 2
# 4 layers with one KV head of 128, in F16; libllama rounds the context up to 256.
TOKEN_BYTES = 2 * 4 * 128 * 2
MOST_TOKENS = CONTEXT + (ROUNDS + 1) * TOKENS
ORIGINAL_BYTES = 768 * TOKEN_BYTES


class Table(program.ProgramTest):
    def table(self, *more, rounds=ROUNDS):
        return ["bench", "table", "-m", program.model(MODEL), "--flash", self.flash,
                "--context", CONTEXT, "--rounds", rounds, "--prompt-rounds", 1, "--tokens", TOKENS,
                "--threads", 1, *more]

    def rows(self, *more):
        report = json.loads(self.succeed(*self.table("--json", *more)).stdout)
        self.assertEqual(report["bench"], "table")
        self.assertEqual(self.leftovers(), [])
        return {row["name"]: row for row in report["rows"]}

    def test_rows(self):
        rows = self.rows()
        self.assertEqual(list(rows), ["table.original", "table.offload.fp16",
                                      "table.offload.auto75", "table.exact.fp16",
                                      "table.exact.auto75", "table.sparse.fp16",
                                      "table.sparse.auto75"])
        for name, row in rows.items():
            metrics = row["metrics"]
            for key in ("ttft_ms", "token_ms", "kv_memory_bytes", "ttft_vs_offload",
                        "token_vs_offload", "token_vs_offload_same_policy"):
                self.assertGreater(metrics[key], 0, f"{name} {key}")
            keeps = name.startswith(("table.exact", "table.sparse"))
            self.assertEqual(metrics["ttft_stored_ms"] is not None, keeps, name)
            self.assertEqual(metrics["kv_flash_bytes"] > 0, keeps, name)
            self.assertEqual("emulated" in metrics, name.startswith("table.offload"), name)
            if keeps:
                self.assertGreaterEqual(metrics["reused_tokens"], CONTEXT // 256 * 256, name)
        self.assertEqual(rows["table.exact.auto75"]["target"],
                         {"token_vs_offload": "<= 0.61", "ttft_vs_offload": "<= 0.8"})

    def test_ratios_and_bytes(self):
        rows = {name: row["metrics"] for name, row in self.rows().items()}
        offload = rows["table.offload.fp16"]
        self.assertEqual(offload["token_vs_offload"], 1)
        self.assertEqual(rows["table.offload.auto75"]["token_vs_offload_same_policy"], 1)
        # All KV on the host and a layer's on the device.
        self.assertAlmostEqual(offload["kv_memory_bytes"], MOST_TOKENS * TOKEN_BYTES * 5 / 4,
                               delta=8192)
        self.assertLess(rows["table.offload.auto75"]["kv_memory_bytes"],
                        0.3 * offload["kv_memory_bytes"])
        original = rows["table.original"]
        self.assertEqual(original["kv_memory_bytes"], ORIGINAL_BYTES)
        self.assertFalse(original["out_of_memory"])
        for figure in "ttft", "token":
            self.assertAlmostEqual(original[f"{figure}_ms"],
                                   min(original[f"{figure}_fa_ms"], original[f"{figure}_nofa_ms"]))
        for name, metrics in rows.items():
            self.assertAlmostEqual(metrics["token_vs_offload"],
                                   metrics["token_ms"] / offload["token_ms"], msg=name)

    def test_the_original_may_not_fit(self):
        rows = self.rows("--memory-cap", ORIGINAL_BYTES - 1, "--policy", "auto75", "--attention",
                         "exact")
        # What others are held against is there in any case.
        self.assertEqual(list(rows), ["table.original", "table.offload.fp16",
                                      "table.offload.auto75", "table.exact.auto75"])
        original = rows["table.original"]["metrics"]
        self.assertTrue(original["out_of_memory"])
        self.assertEqual(original["kv_memory_bytes"], ORIGINAL_BYTES)
        for key in ("ttft_ms", "token_ms", "ttft_vs_offload", "token_vs_offload"):
            self.assertIsNone(original[key])
        self.assertGreater(rows["table.exact.auto75"]["metrics"]["token_ms"], 0)
        self.assertFalse(self.rows("--memory-cap", ORIGINAL_BYTES, "--policy", "f16",
                                   "--attention", "exact")
                         ["table.original"]["metrics"]["out_of_memory"])

    def test_people_see_it_beside_the_claims(self):
        text = self.succeed(*self.table("--policy", "fp16", "--attention", "exact")).stdout.decode()
        for word in ("table.offload.fp16 (emulated)", "table.exact.fp16", "F6: HiFC", "680",
                     "F6: host offload", "A100"):
            self.assertIn(word, text)
        help_text = self.succeed("bench", "table", "--help").stdout.decode()
        for word in ("EMULATED", "--memory-cap 128MiB", "=fp16,auto75", "=0.6", "=8000"):
            self.assertIn(word, help_text)

    def test_interrupted(self):
        child = self.start(*self.table(rounds=100))
        while b"further tokens" not in (line := child.stderr.readline()):
            self.assertNotEqual(line, b"")
        child.send_signal(signal.SIGINT)
        output, error = child.communicate(timeout=program.TIMEOUT_S)
        self.assertEqual(child.returncode, 130, error.decode())
        self.assertEqual(output, b"")
        self.assertEqual(self.leftovers(), [])

    def test_refused(self):
        self.refused("bench", "table", "-m", program.model(MODEL), "--context", 64,
                     words=["--flash"])
        for option, value, words in (("--memory-cap", "much", ["--memory-cap", "much"]),
                                     ("--context", "100,200", ["--context", "one"]),
                                     ("--hot-ratio", "0.5,0.6", ["--hot-ratio", "one"]),
                                     ("--prompt-rounds", 0, ["--prompt-rounds"])):
            self.refused("bench", "table", "-m", "none.gguf", option, value, words=words, status=2)


if __name__ == "__main__":
    unittest.main()
