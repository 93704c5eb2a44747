#!/usr/bin/env python3
"""Files that `hifc run` cannot use: one sentence each, and never an end by a signal."""

import concurrent.futures
import os
import pathlib
import random
import tempfile
import unittest

import program
from program import ProgramTest, hifc

POSITIONS = int(os.environ.get("HIFC_MODEL_FUZZ", "200"))


class UnusableModels(ProgramTest):
    def test_architectures_are_refused_by_name(self):
        for name, reason in {"bloom-alibi": "ALiBi", "deepseek2-mla": "MLA",
                             "mamba-recurrent": "recurrent", "phi3-longrope": "LongRoPE",
                             "gemma3n-shared": "share one KV cache",
                             "gptoss-sinks": "attention sinks"}.items():
            with self.subTest(model=name):
                self.refused(*self.run_command(name), words=[program.model(name), reason])

    def test_files_that_are_no_models(self):
        path = self.folder / "model.gguf"

        def refused(content, word):
            path.write_bytes(content)
            self.refused("run", "-m", path, "-p", "x", words=[path, word])
        refused(b"", "not a GGUF file")
        refused(b"a text", "not a GGUF file")
        whole = pathlib.Path(program.model("llama-hd96")).read_bytes()
        for percent in (10, 50, 90):
            refused(whole[:len(whole) * percent // 100], "cut off")
        self.refused("run", "-m", self.folder, "-p", "x", words=[self.folder, "not a regular file"])
        self.refused("run", "-m", self.folder / "none", "-p", "x", words=["No such file"])

    def test_random_damage_of_the_metadata_never_ends_by_a_signal(self):
        sources = []
        for name in ("llama-hd96", "qwen2-gqa-bias"):
            content = pathlib.Path(program.model(name)).read_bytes()
            sources.append((content, content.index(b"blk.0.attn_norm.weight") + 512))

        def damage(seed):
            choice = random.Random(seed)
            content, metadata_bytes = sources[seed % len(sources)]
            at = choice.randrange(4, metadata_bytes)
            damaged = bytearray(content)
            damaged[at] ^= choice.randrange(1, 256)
            with tempfile.NamedTemporaryFile(suffix=".gguf", dir=self.folder) as file:
                file.write(damaged)
                file.flush()
                done = hifc("run", "-m", file.name, "-p", "hello", "-n", "1", "--raw", "-q",
                            "--threads", "1", "--context", "128")
            return seed, at, done

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for seed, at, done in pool.map(damage, range(POSITIONS)):
                error = done.stderr.decode(errors="replace")
                with self.subTest(seed=seed, at=at):
                    self.assertIn(done.returncode, (0, 1), error)
                    if done.returncode == 1:
                        self.assertEqual(len(error.splitlines()), 1, error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
