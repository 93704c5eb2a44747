#!/usr/bin/env python3
"""Policies: fitting one to a model, running with it, and what of them is refused."""

import json
import unittest

from program import LICENSES, ProgramTest, model

MODEL = "llama-hd128"
TEXT = LICENSES / "GPL-3"
TOKENS = ("--tokens", "700", "--threads", "1", "-q")


class Policy(ProgramTest):
    def setUp(self):
        super().setUp()
        self.policy = self.folder / "policy.yaml"

    def tune(self, *more):
        tokens = () if "--tokens" in more else TOKENS
        return ("tune", "quality", "-m", model(MODEL), "-f", TEXT, *tokens,
                "-o", self.policy, *more)

    def rows(self, done):
        return {row["name"]: row["metrics"] for row in json.loads(done.stdout)["rows"]}

    def test_a_tuned_policy_saves_what_was_asked_for_and_can_be_used(self):
        tuned = self.rows(self.succeed(*self.tune("--save-bytes", "60%", "--json")))
        self.assertGreaterEqual(tuned["policy"]["saved"], 0.6)
        self.assertLess(tuned["policy"]["saved"], 0.66)
        layers = [metrics for name, metrics in tuned.items() if name.startswith("layer")]
        self.assertGreater(len(layers), 1)
        self.assertGreater(len({layer["weight"] for layer in layers}), 1)

        report = self.rows(self.succeed("eval", "-m", model(MODEL), "-f", TEXT, *TOKENS,
                                        "--policy", self.policy, "--json"))
        self.assertEqual(report["hifc"]["saved"], tuned["policy"]["saved"])
        self.assertEqual(report["hifc"]["kl"], tuned["policy"]["kl"])

        self.succeed(*self.run_command(MODEL, "--policy", self.policy))

    def test_every_layer_keeps_the_share_that_was_asked_for(self):
        tuned = self.rows(self.succeed(*self.tune("--recovery", "97%", "--json")))
        for name, metrics in tuned.items():
            if name.startswith("layer"):
                self.assertGreaterEqual(metrics["recovery"], 0.97, name)
                # Fitted to recovery alone.
                self.assertNotIn("weight", metrics)
        self.assertGreater(tuned["policy"]["saved"], 0.3)
        # Two bits everywhere keep less than that.
        self.assertLess(tuned["policy"]["saved"], 0.84)
        # What is told of layers was measured, with K and V encoded together.
        report = self.rows(self.succeed(
            "bench", "quality", "-m", model(MODEL), "--text", f"gpl3={TEXT}",
            "--policies", self.policy, *TOKENS, "--json"))
        for layer, recovery in enumerate(report["quality.policy.gpl3"]["recovery_layers"]):
            self.assertAlmostEqual(recovery, tuned[f"layer{layer}"]["recovery"], places=3)

    def test_a_file_cannot_make_measurements_sparse_or_tiered(self):
        config = self.folder / "hifc.yaml"
        config.write_text("hifc_config: {attention: sparse, mass: 0.5, policy: auto75, ubatch: 64, "
                          f"hot_cache_size: 1MiB, flash_path: {self.flash}}}\n")
        bench = ("bench", "quality", "-m", model(MODEL), "--text", f"gpl3={TEXT}",
                 "--policies", "auto75", *TOKENS, "--json")
        plain = self.rows(self.succeed(*bench))
        self.assertEqual(self.rows(self.succeed(*bench, "--config", config)), plain)
        self.succeed(*self.tune("--recovery", "97%", "--json"))
        policy = self.policy.read_text()
        self.succeed(*self.tune("--recovery", "97%", "--json", "--config", config))
        self.assertEqual(self.policy.read_text(), policy)
        self.assertEqual(self.leftovers(), [])

    def test_targets_are_for_the_text_that_they_name(self):
        done = self.succeed(
            "bench", "quality", "-m", model(MODEL), "--text", f"gpl3={TEXT},{TEXT.parent}/GPL-2",
            "--policies", "auto75", *TOKENS, "--json")
        targets = {row["name"]: row["target"] for row in json.loads(done.stdout)["rows"]}
        self.assertTrue(targets["quality.auto75.gpl3"])
        self.assertFalse(targets["quality.auto75.gpl2"])

    def test_quality_is_judged_on_another_text_than_the_policy_was_fitted_to(self):
        other = self.folder / "other.txt"
        other.write_bytes((LICENSES / "GFDL-1.3").read_bytes()[:8000])
        done = self.succeed(
            "bench", "quality", "-m", model(MODEL), "--text", f"gpl3={TEXT},other={other}",
            "--policies", "auto75,tuned75", *TOKENS, "--json")
        report = self.rows(done)
        self.assertEqual(json.loads(done.stdout)["parameters"]["tokens"], [700, 700])
        self.assertEqual(report["quality.tuned75.gpl3"]["tuned_on"], "other")
        self.assertEqual(report["quality.tuned75.other"]["tuned_on"], "gpl3")
        for text in ("gpl3", "other"):
            self.assertEqual(report[f"quality.fp16.{text}"]["saved"], 0)
            for name in ("auto75", "tuned75"):
                self.assertGreaterEqual(report[f"quality.{name}.{text}"]["saved"], 0.75)

    def test_what_cannot_be_reached_is_refused_with_what_can(self):
        self.refused(*self.tune("--save-bytes", "90%"), words=["2 bits everywhere save 84.3 %"])
        self.assertFalse(self.policy.exists())
        self.refused("bench", "quality", "-m", model(MODEL), "--policies", "tuned90",
                     words=["2 bits everywhere save 84.3 %"])

    def test_a_policy_of_another_model_is_refused(self):
        self.succeed(*self.tune("--save-bytes", "0.5"))
        self.refused(*self.run_command("qwen2-gqa-bias", "--policy", self.policy),
                     words=["is for llama with", "but this model is qwen2 with"])

    def test_a_text_that_is_too_short_to_measure_on_is_refused(self):
        self.refused(*self.tune("--save-bytes", "60%", "--tokens", "511"),
                     words=["511 tokens", "512 or more"])

    def test_where_the_policy_cannot_be_written_is_said_before_the_work(self):
        for path in (self.folder, self.folder / "none" / "p.yaml", "/dev/full"):
            command = [path if word == self.policy else word
                       for word in self.tune("--save-bytes", "60%")]
            self.refused(*command, words=[path])
        target = self.folder / "target"
        target.write_text("kept")
        self.policy.symlink_to(target)
        self.refused(*self.tune("--save-bytes", "60%"), words=[self.policy])
        self.assertTrue(self.policy.is_symlink())

    def test_names_that_are_no_policies_are_refused(self):
        for bad in ("auto80", "auto", ""):
            self.refused(*self.run_command(MODEL, "--policy", bad), status=2,
                         words=["--policy", "auto75", "hifc tune quality"])
        for bad in ("tuned0", "tuned100", "tuned075", "tunedx"):
            self.refused("bench", "quality", "-m", model(MODEL), "--policies", bad,
                         words=[bad, "tuned75"])

    def test_goals_that_are_no_shares_are_refused(self):
        for option in ("--save-bytes", "--recovery"):
            for bad in ("nan", "0", "100%", "-5%", "1.5", "35 %", ""):
                self.refused(*self.tune(option, bad), status=2,
                             words=[option, "a share between 0 and 1, such as 35% or 0.35"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
