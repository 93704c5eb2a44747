#!/usr/bin/env python3
"""`hifc run`: prompts, budgets, reports, interruption and every mistake a user can make."""

import json
import math
import os
import signal
import subprocess
import time
import unittest

import program
from program import LICENSES, ProgramTest, hifc

REPORT_KEYS = {
    "model", "prompt_tokens", "reused_tokens", "generated_tokens", "ttft_ms",
    "prefill_tokens_per_s", "decode_ms_per_token", "decode_ms_p99", "kv_bytes_total",
    "peak_rss_bytes", "text", "logits_hash", "tiers", "flash", "prefetch", "stall_ms_per_token",
    "compute_ms_per_token", "roofline_ratio",
}
TIER_KEYS = {"capacity_bytes", "peak_bytes", "hits", "bytes_read", "bytes_written"}
FLASH_KEYS = {"read_gbps", "write_gbps", "writes", "mean_write_bytes", "write_amplification",
              "corrupt_blocks", "corrupt_headers", "quarantined_groups", "timeouts"}
PREFETCH_KEYS = {"predictor", "blocks_wanted", "blocks_on_time", "blocks_fetched", "on_time",
                 "share_fetched"}
MIB = 1 << 20


def long_text(folder, tokens=1500):
    """About `tokens` tokens for the random-weight models, which mostly have one per character."""
    path = folder / "long.txt"
    path.write_bytes((LICENSES / "GPL-3").read_bytes()[:tokens])
    return path


class Prompts(ProgramTest):
    def test_flag_file_and_standard_input_give_the_same_text(self):
        text = b"Where does this lead?"
        path = self.folder / "prompt.txt"
        path.write_bytes(text)
        by_flag = self.succeed(*self.run_command("llama-32l", "-q", prompt=text.decode()))
        by_file = self.succeed(*self.run_command("llama-32l", "-q", "-f", path))
        by_input = self.succeed(*self.run_command("llama-32l", "-q", prompt=None), text=text)
        self.assertGreater(len(by_flag.stdout), 1)
        self.assertEqual(by_flag.stdout, by_file.stdout)
        self.assertEqual(by_flag.stdout, by_input.stdout)
        self.assertEqual(by_flag.stderr, b"")  # --quiet

    def test_table_is_shown_unless_quiet(self):
        shown = self.succeed(*self.run_command())
        for word in (b"prompt", b"hot", b"warm", b"cold", b"capacity"):
            self.assertIn(word, shown.stderr)

    def test_equal_seeds_give_equal_text(self):
        def text(seed):
            command = self.run_command("llama-32l", "-q", "-n", "24")
            command[command.index("--temp") + 1] = "1.2"
            return self.succeed(*command, "--seed", seed).stdout
        self.assertEqual(text(5), text(5))
        self.assertNotEqual(text(5), text(6))

    def test_empty_prompt(self):
        self.refused(*self.run_command(prompt=None), text=b"", words=["the prompt is empty"])
        empty = self.folder / "empty.txt"
        empty.touch()
        self.refused(*self.run_command("llama-32l", "-f", empty), words=["the prompt is empty"])

    def test_unreadable_prompt_file(self):
        path = self.folder / "none.txt"
        self.refused(*self.run_command("llama-32l", "-f", path),
                     words=[path, "No such file or directory"])
        self.refused(*self.run_command("llama-32l", "-f", self.folder), words=[self.folder])

    def test_prompt_and_file_together(self):
        self.refused(*self.run_command(), "-f", "x", status=2, words=["-p", "-f"])

    def test_prompt_longer_than_the_context(self):
        self.refused(*self.run_command("llama-32l", "--context", 16, prompt="x" * 50),
                     words=["tokens", "the context holds 16"])
        self.refused(*self.run_command("llama-32l", "--context", 5000),
                     words=["context 5000", "4096"])

    def test_prompt_that_is_not_utf8(self):
        self.refused(*self.run_command(prompt=None), text=b"abc\xff\xfe",
                     words=["not UTF-8", "0xff", "offset 3"])


class Mistakes(ProgramTest):
    def test_unknown_flag(self):
        self.refused(*self.run_command(), "--hot-cach-size", "1GiB", status=2,
                     words=["--hot-cach-size", "did you mean --hot-cache-size?"])

    def test_no_command_and_no_model(self):
        bare = hifc()
        self.assertEqual(bare.returncode, 2)
        self.assertIn(b"run", bare.stderr)
        self.refused("run", "-p", "x", status=2, words=["--model"])

    def test_misspelt_key_of_the_configuration_file(self):
        path = self.folder / "config.yaml"
        path.write_text("hifc_config:\n  hot_cache_rati: 0.5\n", encoding="utf-8")
        self.refused(*self.run_command(), "--config", path,
                     words=[f"{path} line 2", "hot_cache_rati", "did you mean hot_cache_ratio?"])

    def test_values_that_are_not_accepted(self):
        command = ["run", "-m", "none.gguf", "-p", "x"]  # nothing is loaded
        for option, value, accepted in (
                ("--flash-size", "64 GB of flash", "is not a size"),
                ("--hot", "12GiBB", "is not a size"), ("--hot-ratio", "1.5", "from 0 to 1"),
                ("--hot-ratio", "nan", "from 0 to 1"), ("--block-tokens", "100", "64, 128"),
                ("--preset", "foo", "rtx4090"), ("--report", "", "not the name of a file")):
            with self.subTest(option=option, value=value):
                self.refused(*command, option, value, status=2, words=[value, accepted])
        for option, value in (("-n", "0"), ("-n", "abc"), ("-n", "99999999999"), ("-n", "1.5"),
                              ("-n", "-2"), ("--tokens", "abc"), ("--temp", "abc"),
                              ("--temp", "inf"), ("--top-p", "7"), ("--top-k", "-1"),
                              ("--min-p", "nan"), ("--seed", "-1")):
            with self.subTest(option=option, value=value):
                self.refused(*command, option, value, status=2,
                             words=[f'{option}: "{value}" is not accepted; accepted is a '])
        self.refused(*self.run_command(), environment={"HIFC_FORCE_ISA": "mmx"},
                     words=["HIFC_FORCE_ISA", "mmx", "avx2"])

    def test_report_that_cannot_be_written(self):
        path = self.folder / "none" / "report.json"
        self.refused(*self.run_command(), "--report", path, words=[path])

    def test_budget_below_the_minimum_names_the_minimum(self):
        command = self.run_command("llama-32l", "-q", "--flash", self.flash)
        error = self.refused(*command, "--hot", "1MiB", "--warm", "1MiB", words=["minimum of"])
        least = error.split("minimum of ")[1].split(" for")[0].replace(" ", "")
        self.succeed(*command, "--hot", "0", "--warm", least)

    def test_flash_too_small_for_the_prompt(self):
        self.refused(*self.run_command("llama-32l", "-f", long_text(self.folder)),
                     "--hot", "20MiB", "--warm", "20MiB",
                     "--flash", self.flash, "--flash-size", "24MiB",
                     words=["of flash", "flash_cache_size is 24.0 MiB"])
        self.assertEqual(self.leftovers(), [])

    def test_flash_too_small_for_any_group_names_the_minimum(self):
        command = self.run_command("llama-32l", "-q", "--flash", self.flash, "--flash-size")
        error = self.refused(*command, "1MiB", words=["flash_cache_size 1.0 MiB", "minimum of"])
        self.assertEqual(self.leftovers(), [])
        self.succeed(*command, error.split("minimum of ")[1].split(" for")[0])

    def test_memory_too_small_without_flash(self):
        self.refused(*self.run_command("llama-32l", "-f", long_text(self.folder)),
                     "--hot", "10MiB", "--warm", "10MiB", words=["no flash tier"])


    def test_misspelt_commands(self):
        for words, expected in (
                ("store verfy D", '"verfy" is not a command of store; accepted are stat, verify, '
                                  'repair, trim (did you mean verify?)'),
                ("bench frob", '"frob" is not a command of bench; accepted are attention, '),
                ("rnu -m x", '"rnu" is not a command of hifc; accepted are run, '),
                ("stor stat D", "(did you mean store?)"),
                ("nonsense --help", '"nonsense" is not a command of hifc')):
            with self.subTest(words=words):
                self.refused(*words.split(), status=2, words=[expected])


class FlashDirectories(ProgramTest):
    def with_flash(self, path):
        return self.run_command("llama-32l", "-q", "--flash", path)

    def test_directory_of_another_process(self):
        self.locked()
        self.refused(*self.with_flash(self.flash), words=[self.flash, "in use by another process"])

    def test_path_that_is_a_file(self):
        self.flash.write_text("not a directory", encoding="ascii")
        self.refused(*self.with_flash(self.flash), words=[self.flash, "Not a directory"])
        self.assertEqual(self.flash.read_text(encoding="ascii"), "not a directory")
        self.refused(*self.with_flash(self.flash / "below"), words=[self.flash])

    def test_directory_that_cannot_be_made(self):
        self.refused(*self.with_flash("/proc/hifc/kv"), words=["/proc/hifc/kv"])

    def test_directory_that_cannot_be_written(self):
        if os.geteuid() == 0:  # who may write everywhere else
            disk = self.mounted("1m,ro")
            self.refused(*self.with_flash(disk), words=[disk, "Read-only file system"])
            return
        self.flash.mkdir(mode=0o500)
        self.refused(*self.with_flash(self.flash), words=[self.flash, "Permission denied"])

    def test_less_room_than_there_is_stored(self):
        self.succeed(*self.run_command("llama-32l", "-q", "-f", long_text(self.folder)),
                     "--flash", self.flash, "--flash-size", "64MiB")
        done = self.succeed(*self.with_flash(self.flash), "--flash-size", "32MiB")
        self.assertRegex(done.stderr.decode(), r"^hifc: removed \d+ segments? \(.*\) of "
                         f"{self.flash} to fit flash_cache_size 32.0 MiB\n$")

    def test_without_a_size_everything_stored_stays(self):
        self.flash.mkdir(mode=0o700)
        names = {f"hifc-{number:08}.seg" for number in range(8)}
        for name in names:
            (self.flash / name).touch()
            os.truncate(self.flash / name, 256 * MIB)  # a segment that was never written
        self.assertEqual(self.succeed(*self.with_flash(self.flash)).stderr, b"")
        self.assertEqual({path.name for path in self.flash.iterdir()}, names)

    def test_files_of_others_are_left_alone(self):
        self.flash.mkdir(mode=0o700)
        (self.flash / "notes.txt").write_text("mine", encoding="ascii")
        self.succeed(*self.with_flash(self.flash))
        self.assertEqual((self.flash / "notes.txt").read_text(encoding="ascii"), "mine")

    def mounted(self, size):
        mount = self.folder / "disk"
        mount.mkdir()
        try:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", mount],
                           check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("no permission to mount a small file system")
        self.addCleanup(subprocess.run, ["umount", mount], check=True)
        return mount

    def test_file_system_without_room(self):
        disk = self.mounted("32m")
        self.refused(*self.with_flash(disk / "kv"), words=[f"{disk}/kv", "free"])
        self.assertEqual(list(disk.iterdir()), [])

    def test_file_system_that_fills_up_while_running(self):
        disk = self.mounted("360m")
        command = self.run_command("llama-32l", "-q", "-f", long_text(self.folder))
        expected = self.succeed(*command).stdout
        # Room enough when the store opens, taken when the first output comes: there is memory.
        child = self.start(*command, "--flash", disk / "kv", "--flash-size", "256MiB",
                           "--no-direct-io")
        first = child.stdout.read(1)
        filler = disk / "filler"
        try:
            with open(filler, "wb") as file:
                while True:
                    file.write(b"\0" * MIB)
        except OSError:
            pass
        rest = child.stdout.read()
        self.assertEqual(child.wait(program.TIMEOUT_S), 0)
        self.assertEqual(first + rest, expected)


class Reports(ProgramTest):
    def test_has_every_key_with_sane_values(self):
        report = self.report_of(
            *self.run_command("llama-32l", "-q", "-n", 12, "-f", long_text(self.folder)),
            "--hot", "20MiB", "--warm", "20MiB", "--flash", self.flash, "--flash-size", "256MiB",
            "--ignore-end")
        self.assertLessEqual(REPORT_KEYS, report.keys())
        self.assertEqual(report["generated_tokens"], 12)
        self.assertEqual(report["reused_tokens"], 0)
        self.assertGreater(report["prompt_tokens"], 1000)
        tokens = report["prompt_tokens"] + report["generated_tokens"]
        # The last token is sampled and not computed.
        self.assertEqual(report["kv_bytes_total"], (tokens - 1) * 32 * 4 * 64 * 2 * 2)
        self.assertRegex(report["logits_hash"], "^[0-9a-f]{16}$")
        for key in ("ttft_ms", "prefill_tokens_per_s", "decode_ms_per_token", "decode_ms_p99",
                    "peak_rss_bytes", "compute_ms_per_token"):
            self.assertGreater(report[key], 0, key)
        self.assertGreaterEqual(report["decode_ms_p99"], report["decode_ms_per_token"] * 0.99)
        self.assertAlmostEqual(report["stall_ms_per_token"] + report["compute_ms_per_token"],
                               report["decode_ms_per_token"], places=6)
        self.assertEqual(set(report["tiers"]), {"hot", "warm", "cold"})
        for name, tier in report["tiers"].items():
            self.assertEqual(set(tier), TIER_KEYS, name)
            self.assertLessEqual(tier["peak_bytes"], tier["capacity_bytes"], name)
        self.assertLessEqual(report["tiers"]["hot"]["capacity_bytes"], 20 * MIB)
        self.assertLessEqual(report["tiers"]["warm"]["capacity_bytes"], 20 * MIB)
        self.assertGreater(report["tiers"]["cold"]["hits"], 0)
        self.assertEqual(set(report["flash"]), FLASH_KEYS)
        self.assertEqual(report["flash"]["corrupt_blocks"], 0)
        self.assertGreaterEqual(report["flash"]["write_amplification"], 1)
        # Batches of 4 MiB and more, and a few pages of metadata.
        self.assertGreaterEqual(report["flash"]["mean_write_bytes"], 2 * MIB)
        prefetch = report["prefetch"]
        self.assertEqual(set(prefetch), PREFETCH_KEYS)
        self.assertGreaterEqual(prefetch["blocks_fetched"], prefetch["blocks_wanted"] * 0.9)
        self.assertTrue(0 <= prefetch["on_time"] <= 1)

    def test_without_flash_says_so(self):
        report = self.report_of(*self.run_command("qwen2-gqa-bias", "-q"))
        self.assertLessEqual(REPORT_KEYS, report.keys())
        self.assertIsNone(report["flash"])
        self.assertEqual(report["tiers"]["cold"]["capacity_bytes"], 0)


class Interruption(ProgramTest):
    def streaming(self, *more):
        return self.run_command("llama-32l", "-f", long_text(self.folder, 3500), "-n", 400,
                                "--ignore-end", "--hot", "20MiB", "--warm", "20MiB",
                                "--flash", self.flash, "--flash-size", "256MiB",
                                "--report", self.folder / "report.json", *more)

    def interrupted(self, child):
        child.send_signal(signal.SIGINT)
        out, error = child.communicate(timeout=program.TIMEOUT_S)
        self.assertEqual(child.returncode, 130, error.decode(errors="replace"))
        report = json.loads((self.folder / "report.json").read_text(encoding="utf-8"))
        self.assertLessEqual(REPORT_KEYS, report.keys())
        return out, report

    def test_during_prefill(self):
        child = self.start(*self.streaming())
        line = child.stderr.readline()
        while b"prefill" not in line and line:
            line = child.stderr.readline()
        self.assertIn(b"prefill", line)
        _, report = self.interrupted(child)
        self.assertEqual(report["generated_tokens"], 0)

    def test_during_decode(self):
        child = self.start(*self.streaming())
        self.assertTrue(child.stdout.read(1))
        _, report = self.interrupted(child)
        self.assertTrue(0 < report["generated_tokens"] < 400)
        self.assertNotEqual(report["text"], "")

    def test_killed_run_leaves_a_directory_that_works(self):
        child = self.start(*self.streaming())
        self.assertTrue(child.stdout.read(1))
        child.kill()
        child.wait(program.TIMEOUT_S)
        self.assertNotEqual(self.leftovers(), [])
        command = self.streaming("-q")
        command[command.index("-n") + 1] = "4"
        self.succeed(*command)


class Budgets(ProgramTest):
    """SmolLM2 on 1,500 tokens: budgets change neither the text nor any logit."""

    def test_any_budget_gives_the_same_logits(self):
        text = self.folder / "gpl.txt"
        text.write_bytes((LICENSES / "GPL-3").read_bytes()[:6600])
        reports = {}
        for hot in (None, 16, 8):
            budget = [] if hot is None else ["--hot", f"{hot}MiB", "--warm", f"{hot}MiB",
                                             "--flash", self.flash, "--flash-size", "256MiB"]
            # An equal chunk grid, which a smaller budget would otherwise make finer.
            command = self.run_command("smollm2-135m", "-q", "-f", text, "-n", 16, "--ubatch", 64)
            reports[hot] = self.report_of(*command, *budget)
        expected = reports[None]
        self.assertTrue(1300 < expected["prompt_tokens"] < 1700, expected["prompt_tokens"])
        for hot in (16, 8):
            with self.subTest(hot_mib=hot):
                self.assertEqual(reports[hot]["text"], expected["text"])
                self.assertEqual(reports[hot]["logits_hash"], expected["logits_hash"])
                self.assertGreater(reports[hot]["tiers"]["cold"]["hits"], 0)
                grown = reports[hot]["peak_rss_bytes"] - reports[hot]["model_rss_bytes"]
                self.assertLess(grown, (2 * hot + 96) * MIB)


class Measurements(ProgramTest):
    def bench_form(self, done, bench):
        report = json.loads(done.stdout)
        self.assertEqual(list(report),
                         ["bench", "commit", "build", "machine", "parameters", "rows"])
        self.assertEqual(report["bench"], bench)
        for row in report["rows"]:
            self.assertEqual(list(row), ["name", "metrics", "target", "pass"])
            self.assertIn(row["pass"], (True, False, None))
            for name, value in row["metrics"].items():
                if isinstance(value, float):
                    self.assertTrue(math.isfinite(value), f"{row['name']} {name}")
            self.assertLessEqual(row["target"].keys(), row["metrics"].keys())
        return {row["name"]: row["metrics"] for row in report["rows"]}

    def test_eval(self):
        rows = self.bench_form(
            self.succeed("eval", "-m", program.model("smollm2-135m"), "-f", LICENSES / "GPL-3",
                         "--tokens", 256, "--threads", 1, "--json",
                         "-q"), "eval")
        self.assertEqual(list(rows), ["llama.f32", "llama.f16", "llama.f16.fa", "hifc"])
        for metrics in rows.values():
            self.assertGreater(metrics["perplexity"], 1)
            self.assertGreaterEqual(metrics["kl"], 0)
            self.assertTrue(0 <= metrics["top1"] <= 1)
        self.assertEqual(rows["llama.f32"]["kl"], 0)
        self.assertIn("kl_over_floor", rows["hifc"])

    def test_bench(self):
        common = ["-m", program.model("llama-hd128"), "--context", 64, "--rounds", 1,
                  "--threads", 1, "--json"]
        rows = self.bench_form(self.succeed("bench", "decode", *common, "--tokens", 2), "decode")
        self.assertEqual(list(rows), ["decode.ctx64.hot1.00.fp16.exact"])
        for key in ("hifc_ms", "llama_fa_ms", "llama_nofa_ms", "speedup", "roofline_ratio",
                    "stall_share"):
            self.assertIn(key, rows["decode.ctx64.hot1.00.fp16.exact"])
        rows = self.bench_form(self.succeed("bench", "prefill", *common), "prefill")
        self.assertEqual(list(rows), ["prefill.ctx64"])
        for key in ("hifc_s", "llama_fa_s", "llama_nofa_s", "speedup"):
            self.assertIn(key, rows["prefill.ctx64"])

    def attention(self, *more):
        return ["bench", "attention", "--shape", "4x1x64", "--codec", "f16", "--context", 512,
                "--threads", 1, "--rounds", 1, *more]

    def test_attention(self):
        rows = self.bench_form(self.succeed(*self.attention("--seconds", 0.01, "--json")),
                               "attention")
        self.assertTrue(any(name.endswith(".prefill512") for name in rows))

    def test_attention_can_be_interrupted(self):
        for number in signal.SIGINT, signal.SIGTERM:
            child = self.start(*self.attention("--seconds", 600))
            time.sleep(2)  # it measures by then, the portable kernel or any other
            child.send_signal(number)
            self.assertEqual(child.wait(20), 130)

    def test_values_that_are_not_accepted(self):
        for option, value, accepted in (
                ("--seconds", "nan", "from 0.01 to 3600"), ("--seconds", "inf", "0.01 to 3600"),
                ("--context", "100", "a multiple of 256 up to 1048576"), ("--shape", "foo", "32x8"),
                ("--codec", "i7", "f16"), ("--rounds", "0", "from 1 to 4096")):
            with self.subTest(option=option, value=value):
                self.refused("bench", "attention", option, value, status=2,
                             words=[option, value, accepted])
        self.assertIn(b"multiples of 256", self.succeed("bench", "attention", "--help").stdout)
        for option, value in ("--hot-ratio", "nan"), ("--hot-ratio", "1.0,inf"), ("--tokens", "x"):
            self.refused("bench", "decode", "-m", "none.gguf", option, value, status=2,
                         words=[f"{option}: ", "accepted is a "])
        self.refused("bench", "flash", "--flash", self.folder, "--seconds", "nan", status=2,
                     words=['--seconds: "nan"'])
        self.refused("eval", "-m", "none.gguf", "-f", "x", "--tokens", "-5", status=2,
                     words=['--tokens: "-5" is not accepted; accepted is a whole number from 0'])

    def test_mistakes(self):
        name = program.model("llama-hd128")
        self.refused("eval", "-m", name, "-f", LICENSES / "GPL-3", "--tokens", 99999999,
                     words=["--tokens 99999999"])
        empty = self.folder / "empty.txt"
        empty.touch()
        self.refused("eval", "-m", name, "-f", empty, words=[empty, "is empty"])
        self.refused("bench", "decode", "-m", name, "--context", 100000, words=["100000"])
        self.refused("bench", "decode", "-m", name, "--context", 64, "--hot-ratio", 0.5,
                     words=["--flash"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
