#!/usr/bin/env python3
"""`hifc run` over what earlier runs left on flash: the text never differs from a fresh run's.

Prompts have fewer tokens than a speed is recorded for, so that what is stored is used however fast
the machine is just now.
"""

import pathlib
import shutil
import signal
import unittest

import program
from program import LICENSES, ProgramTest

BLOCK = 64
TEXT = (LICENSES / "GPL-3").read_bytes()


class Resume(ProgramTest):
    def over_flash(self, *more, prompt=240, name="llama-32l", text=None):
        path = self.folder / "prompt.txt"
        path.write_bytes(TEXT[:prompt] if text is None else text)
        return self.run_command(name, "-q", "-f", path, "--ignore-end", "--flash", self.flash,
                                "--flash-size", "256MiB", "--block-tokens", BLOCK,
                                "--hot", "20MiB", "--warm", "20MiB", *more)

    def fresh(self, command):
        """The same run without flash."""
        at = command.index("--flash")
        return self.report_of(*command[:at], *command[at + 4:])

    def same(self, report, expected):
        self.assertEqual(report["text"], expected["text"])
        self.assertEqual(report["logits_hash"], expected["logits_hash"])

    def whole_groups(self, report):
        return report["prompt_tokens"] // BLOCK * BLOCK

    def test_the_same_prompt_computes_only_its_tail(self):
        command = self.over_flash("-n", 8)
        expected = self.fresh(command)
        first = self.report_of(*command)
        self.assertEqual(first["reused_tokens"], 0)
        self.assertEqual(first["resume"]["decision"], "nothing stored")
        self.same(first, expected)
        for _ in range(3):
            again = self.report_of(*command)
            self.assertEqual(again["resume"]["decision"], "loaded")
            self.assertEqual(again["reused_tokens"], self.whole_groups(again))
            self.assertEqual(again["resume"]["stored_tokens"], again["reused_tokens"])
            self.assertLess(again["tiers"]["cold"]["bytes_written"],
                            first["tiers"]["cold"]["bytes_written"] / 2)
            self.same(again, expected)

    def test_the_table_says_what_was_reused(self):
        command = self.over_flash()
        self.succeed(*command)
        command.remove("-q")
        shown = self.succeed(*command).stderr.decode()
        self.assertRegex(shown, "reused 192 of [0-9]+ prompt tokens")

    def test_history_continues_from_the_parked_tail(self):
        first = self.report_of(*self.over_flash("-n", 8))
        tokens = first["prompt_tokens"]
        command = self.over_flash("-n", 8, prompt=250)
        # The prompt's own tail is not stored, since the answer came after it.
        again = self.report_of(*command)
        self.assertGreaterEqual(again["reused_tokens"], tokens // BLOCK * BLOCK)
        self.same(again, self.fresh(command))

    def test_killed_while_generating(self):
        command = self.over_flash("-n", 400)
        child = self.start(*command)
        self.assertEqual(len(child.stdout.read(40)), 40)
        child.kill()
        child.wait(program.TIMEOUT_S)
        command[command.index("-n") + 1] = "8"
        report = self.report_of(*command)
        self.assertGreater(report["reused_tokens"], 0)
        self.same(report, self.fresh(command))

    def test_terminated_after_a_second_conversation(self):
        self.report_of(*self.over_flash("-n", 8, text=TEXT[5000:5200]))
        command = self.over_flash("-n", 400)
        child = self.start(*command)
        self.assertTrue(child.stdout.read(1))
        child.send_signal(signal.SIGTERM)
        _, error = child.communicate(timeout=program.TIMEOUT_S)
        self.assertEqual(child.returncode, 130, error.decode(errors="replace"))
        command[command.index("-n") + 1] = "8"
        report = self.report_of(*command)
        # Whole groups; with luck it was terminated right after the prompt, which is then parked.
        self.assertGreaterEqual(report["reused_tokens"], self.whole_groups(report))
        self.same(report, self.fresh(command))

    def test_no_resume(self):
        command = self.over_flash("-n", 8)
        self.succeed(*command)
        report = self.report_of(*command, "--no-resume")
        self.assertEqual(report["reused_tokens"], 0)
        self.assertEqual(report["resume"]["decision"], "off")
        self.same(report, self.fresh(command))

    def test_flipped_bytes_on_flash(self):
        command = self.over_flash("-n", 8)
        self.succeed(*command)
        for path in self.flash.glob("*.seg"):
            with open(path, "r+b") as file:
                for at in range(8192 + 77, path.stat().st_size, 300_000):
                    file.seek(at)
                    byte = file.read(1)
                    file.seek(at)
                    file.write(bytes([byte[0] ^ 4]))
        self.same(self.report_of(*command), self.fresh(command))

    def test_a_model_changed_in_place_is_another_model(self):
        path = self.folder / "model.gguf"
        shutil.copyfile(program.model("llama-32l"), path)
        command = self.over_flash("-n", 8, name="llama-32l")
        command[command.index("-m") + 1] = str(path)
        self.succeed(*command)
        self.assertGreater(self.report_of(*command)["reused_tokens"], 0)
        with open(path, "r+b") as file:
            file.seek(pathlib.Path(path).stat().st_size - 4096)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
        report = self.report_of(*command)
        self.assertEqual(report["reused_tokens"], 0)
        self.assertEqual(report["resume"]["stored_tokens"], 0)
        self.same(report, self.fresh(command))

    def test_another_tenant_finds_nothing(self):
        command = self.over_flash("-n", 8)
        self.succeed(*command, "--tenant", "one")
        self.assertEqual(self.report_of(*command, "--tenant", "two")["reused_tokens"], 0)
        self.assertEqual(self.report_of(*command)["reused_tokens"], 0)
        self.assertGreater(self.report_of(*command, "--tenant", "one")["reused_tokens"], 0)

    def test_two_prompts_share_their_beginning(self):
        self.succeed(*self.over_flash("-n", 8, text=TEXT[:200]))
        command = self.over_flash("-n", 8, text=TEXT[:150] + b"And now for something else.")
        report = self.report_of(*command)
        self.assertEqual(report["reused_tokens"], 128)
        self.same(report, self.fresh(command))


if __name__ == "__main__":
    unittest.main(verbosity=2)
