#!/usr/bin/env python3
"""Sparse attention: what its report says, what it does not depend on, and what is refused."""

import json
import unittest

from program import LICENSES, ProgramTest, model

MODEL = "llama-hd128"
# 1,900 tokens of a random model, whose attention is nearly even.
TEXT = (LICENSES / "GPL-3").read_text()[:5000]


class Sparse(ProgramTest):
    def sparse(self, *more):
        return self.run_command(MODEL, "-n", "12", "--attention", "sparse", *more, prompt=TEXT)

    def test_over_all_of_the_attention_it_is_exact(self):
        exact = self.report_of(*self.run_command(MODEL, "-n", "12", prompt=TEXT))
        whole = self.report_of(*self.sparse("--mass", "1"))
        self.assertEqual(whole["logits_hash"], exact["logits_hash"])
        self.assertEqual(exact["attention"], {"mode": "exact"})
        self.assertEqual(whole["attention"]["pages_selected_share"], 1)
        self.assertEqual(whole["attention"]["skipped_mass_bound"]["max"], 0)

    def test_it_is_the_same_wherever_blocks_are(self):
        reports = [self.report_of(*self.sparse("--mass", "0.5", *budget))
                   for budget in ((), ("--flash", self.flash, "--hot", "1MiB"),
                                  ("--flash", self.flash, "--hot-ratio", "0.5"))]
        self.assertEqual(len({report["logits_hash"] for report in reports}), 1)
        attention = reports[0]["attention"]
        self.assertLess(attention["pages_selected_share"], 0.9)
        self.assertLessEqual(attention["skipped_mass"]["max"], 0.5)
        self.assertLessEqual(attention["skipped_mass"]["p50"],
                             attention["skipped_mass_bound"]["p50"])
        self.assertEqual(attention["sparse_tokens"], 11)
        self.assertEqual(reports[1]["prefetch"]["predictor"], "decayed_mean")

    def test_the_bound_is_kept(self):
        report = self.report_of(*self.sparse("--mass", "0.3", "--mass-bound", "0.2"))
        self.assertLessEqual(report["attention"]["skipped_mass_bound"]["max"], 0.2001)

    def test_nonsense_is_refused(self):
        for more, words in ((("--mass", "0"), ("--mass", "above 0 and at most 1")),
                            (("--mass-bound", "2"), ("--mass-bound",)),
                            (("--predictor", "crystal"), ("decayed_mean", "hot_span")),
                            (("--on-miss", "wait"), ("fetch or skip",))):
            self.refused(*self.sparse(*more), words=words, status=2)
        self.refused(*self.sparse("--deterministic"), words=("attention exact",))
        self.refused(*self.sparse("--warm", "1KiB"), words=("warm_cache_size", "sparse attention"))

    def test_quality_is_measured_token_by_token(self):
        text = self.folder / "text"
        text.write_text(TEXT)
        done = self.succeed("eval", "-m", model(MODEL), "-f", text, "--tokens", "900",
                            "--threads", "1", "-q", "--attention", "sparse", "--mass", "0.9",
                            "--json")
        rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
        self.assertGreater(rows["hifc"]["metrics"]["kl"], 0)
        self.assertGreater(rows["hifc"]["metrics"]["attention"]["sparse_tokens"], 300)
        self.assertIn("kl_over_floor", rows["hifc"]["target"])

    def test_heads_are_told_apart(self):
        text = self.folder / "text"
        text.write_text(TEXT)
        command = ("tune", "heads", "-m", model(MODEL), "-f", text, "--threads", "1",
                   "--tokens", "4")
        done = self.succeed(*command, "--context", "700", "--mass", "0.6", "--json")
        rows = {row["name"]: row["metrics"] for row in json.loads(done.stdout)["rows"]}
        heads = [row for name, row in rows.items() if name.startswith("layer")]
        self.assertGreater(len(heads), 3)
        for head in heads:
            self.assertLess(head["pages"], 0.6)
            self.assertLess(head["first"] + head["newest"], 0.6)
        shapes = [row for name, row in rows.items() if name.startswith("heads.")]
        self.assertGreaterEqual(len(shapes), 2)
        for shape in shapes:
            self.assertGreater(shape["saved"], 0)
            self.assertLess(shape["by_head_bytes"], shape["whole_bytes"])
            self.assertNotIn("device_saved", shape)
        self.refused(*command, words=("tokens", "--context 6000"), status=1)
        self.refused(*command, "--mass", "1", words=("--mass", "between 0 and 1"), status=2)
        self.refused(*command, "--context", "700", "--device", self.folder / "absent",
                     words=("absent",), status=1)

    def test_predictions_are_compared(self):
        done = self.succeed("bench", "prefetch", "-m", model(MODEL), "--context", "1000",
                            "--tokens", "40", "--threads", "1", "--flash", self.flash,
                            "--mass", "0.5", "--json")
        rows = {row["name"]: row["metrics"] for row in json.loads(done.stdout)["rows"]}
        self.assertEqual(sorted(rows), sorted(
            f"prefetch.{name}.ctx1000"
            for name in ("decayed_mean", "decayed_max", "mean", "hot_span")))
        for name, metrics in rows.items():
            for key in ("recall", "share_fetched", "selected_recall", "on_time"):
                self.assertGreater(metrics[key], 0, name)
                self.assertLessEqual(metrics[key], 1, name)
        # One span has all that is between; in a random model little is.
        self.assertGreaterEqual(rows["prefetch.hot_span.ctx1000"]["share_fetched"],
                                rows["prefetch.mean.ctx1000"]["share_fetched"])
        # And sparse attention goes by it.
        self.assertGreater(rows["prefetch.hot_span.ctx1000"]["selected_share"],
                           rows["prefetch.mean.ctx1000"]["selected_share"])
        self.assertEqual(self.leftovers(), [])

    def retrieval(self, name, *more):
        done = self.succeed("bench", "retrieval", "-m", model(name), "--context", "3072",
                            "--sets", "1", "--flash", self.flash, *more, "--json")
        self.assertEqual(self.leftovers(), [])
        return {row["name"]: row for row in json.loads(done.stdout)["rows"]}

    def test_facts_are_asked_for_under_both_kinds_of_attention(self):
        whole = self.retrieval(MODEL, "--mass", "1")
        self.assertEqual(list(whole), [*(f"retrieval.depth{depth:02}"
                                         for depth in range(5, 100, 10)), "retrieval.mean"])
        for name, row in whole.items():
            metrics = row["metrics"]
            self.assertEqual(metrics["logprob_sparse"], metrics["logprob_exact"], name)
            self.assertLess(metrics["logprob_exact"], 0, name)
            self.assertNotEqual(metrics["logprob_exact"], metrics["logprob_without"], name)
        few = self.retrieval(MODEL, "--mass", "0.3")
        self.assertNotEqual(few["retrieval.mean"]["metrics"]["logprob_sparse"],
                            few["retrieval.mean"]["metrics"]["logprob_exact"])
        self.assertLess(few["retrieval.mean"]["metrics"]["pages_selected_share"], 0.9)

    def test_facts_are_found(self):
        rows = self.retrieval("smollm2-135m")
        mean = rows["retrieval.mean"]
        self.assertEqual(mean["target"], {"drop": "<= 0.05"})
        self.assertGreaterEqual(mean["metrics"]["found"], 7)
        for row in rows.values():
            metrics = row["metrics"]
            self.assertEqual(metrics["drop"] is None, metrics["found"] == 0)
            if row is not mean and metrics["found"]:
                self.assertEqual(metrics["drop"],
                                 metrics["logprob_exact"] - metrics["logprob_sparse"])

    def test_nonsense_about_facts_is_refused(self):
        for more, words in ((("--context", "1000"), ("--context", "3072")),
                            (("--context", "4000,8000"), ("one --context",)),
                            (("--sets", "4"), ("--sets", "from 1 to 3"))):
            self.refused("bench", "retrieval", "-m", model(MODEL), *more, words=words, status=2)
        self.refused("bench", "retrieval", "-m", model(MODEL), "--context", "4000",
                     words=("--context 4000", "4096 tokens"))

    def test_policies_and_attentions_are_compared_side_by_side(self):
        done = self.succeed("bench", "decode", "-m", model(MODEL), "--context", "600",
                            "--rounds", "1", "--tokens", "2", "--threads", "1",
                            "--policy", "fp16,auto75", "--attention", "exact,sparse", "--json")
        names = {row["name"] for row in json.loads(done.stdout)["rows"]}
        self.assertEqual(names, {f"decode.ctx600.hot1.00.{policy}.{attention}"
                                 for policy in ("fp16", "auto75")
                                 for attention in ("exact", "sparse")})


if __name__ == "__main__":
    unittest.main()
