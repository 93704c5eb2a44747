#!/usr/bin/env python3
"""`--trace FILE`: what the timeline has, that it agrees with the report, and when it is written."""

import json
import pathlib
import signal
import subprocess
import sys
import unittest
import xml.etree.ElementTree

import program
from program import LICENSES, ProgramTest

ROUNDING_US = 0.002
LAYERS = 30  # of SmolLM2
DRAW = pathlib.Path(__file__).parents[2] / "scripts" / "draw-trace"


def end_of(event):
    return event["ts"] + event["dur"]


class Trace:
    """A trace file; complete spans are lists of events, asynchronous ones pairs."""

    def __init__(self, path):
        self.json = json.loads(path.read_text(encoding="utf-8"))
        self.events = self.json["traceEvents"]

    def spans(self, **wanted):
        return [e for e in self.events
                if e["ph"] == "X" and all(e[key] == value for key, value in wanted.items())]

    def pairs(self, name):
        begins = {e["id"]: e for e in self.events if e["ph"] == "b" and e["name"] == name}
        ends = {e["id"]: e for e in self.events if e["ph"] == "e" and e["name"] == name}
        assert len(begins) == sum(e["ph"] == "b" and e["name"] == name for e in self.events)
        return [(begins[key], ends[key]) for key in ends]


def inside(event, outer):
    return (outer["ts"] - ROUNDING_US <= event["ts"] and
            end_of(event) <= end_of(outer) + ROUNDING_US)


class TraceTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "t.json"
        self.text = self.folder / "gpl.txt"
        self.text.write_bytes((LICENSES / "GPL-3").read_bytes()[:6600])

    def traced_run(self, *more):
        return self.run_command("smollm2-135m", "-f", self.text, "-n", 6, "--ignore-end",
                                "--hot", "8MiB", "--warm", "8MiB", "--flash", self.flash,
                                "--flash-size", "256MiB", "--trace", self.path, *more)

    def check_nesting(self, trace):
        """Perfetto shows complete spans of one thread only where they nest."""
        open_until = {}
        for event in sorted(trace.spans(), key=lambda e: (e["ts"], -e["dur"])):
            stack = open_until.setdefault(event["tid"], [])
            while stack and stack[-1] <= event["ts"] + ROUNDING_US:
                stack.pop()
            if stack:
                self.assertLessEqual(end_of(event), stack[-1] + ROUNDING_US, event)
            stack.append(end_of(event))

    def leftovers_beside(self):
        return [path.name for path in self.folder.iterdir() if path.name.startswith("t.json.")]


class Content(TraceTest):
    def test_agrees_with_the_report(self):
        report = self.report_of(*self.traced_run("-q"))
        trace = Trace(self.path)
        self.assertEqual(trace.json["otherData"]["dropped_events"], 0)
        self.check_nesting(trace)
        self.check_steps(trace, report)
        self.check_stalls(trace, report)
        self.check_transfers(trace, report)
        self.check_picture(trace)
        self.assertEqual(self.leftovers_beside(), [])

    def check_steps(self, trace, report):
        steps = trace.spans(cat="step", name="generation step")
        self.assertEqual(len(steps), report["generated_tokens"] - 1)
        first = report["prompt_tokens"]
        self.assertEqual([e["args"]["position"] for e in steps],
                         list(range(first, first + len(steps))))
        prompt = trace.spans(cat="step", name="prompt step")
        self.assertEqual(sum(e["args"]["tokens"] for e in prompt), first)
        layers, models = trace.spans(cat="layer"), trace.spans(cat="model")
        attention = trace.spans(name="attention")
        for step in steps + prompt:
            within = [e for e in layers if inside(e, step)]
            self.assertEqual([e["args"]["layer"] for e in within], list(range(LAYERS)))
            self.assertEqual([e["args"]["before_layer"] for e in models if inside(e, step)],
                             list(range(LAYERS + 1)))
            attended = {e["args"]["layer"] for e in attention if inside(e, step)}
            self.assertEqual(attended, set(range(LAYERS)))
        self.assertEqual(len(trace.spans(name="sample")), report["generated_tokens"])

    def check_stalls(self, trace, report):
        stalls, layers = trace.spans(cat="stall"), trace.spans(cat="layer")
        steps = trace.spans(cat="step", name="generation step")
        self.assertTrue(stalls)
        for stall in stalls:
            layer = stall["args"]["layer"]
            self.assertTrue(any(inside(stall, e) and e["args"]["layer"] == layer for e in layers),
                            stall)
        decode_us = sum(e["dur"] for e in stalls if any(inside(e, step) for step in steps))
        expected_us = 1000 * report["stall_ms_per_token"] * len(steps)
        self.assertAlmostEqual(decode_us, expected_us, delta=ROUNDING_US * (len(stalls) + 1))

    def check_transfers(self, trace, report):
        reads, writes = trace.pairs("read"), trace.pairs("write")
        self.assertEqual({begin["args"]["layer"] for begin, _ in reads}, set(range(LAYERS)))
        self.assertGreater(sum(begin["args"]["bytes"] for begin, _ in writes), 0)
        for begin, end in reads + writes:
            self.assertGreaterEqual(end["ts"], begin["ts"])
            self.assertFalse(end["args"]["failed"])
        cold = report["tiers"]["cold"]
        self.assertEqual(sum(begin["args"]["blocks"] for begin, _ in reads),
                         report["prefetch"]["blocks_fetched"])
        # Some were still on their way when the report was made.
        begun = [e for e in trace.events if e["ph"] == "b" and e["name"] == "read"]
        self.assertLessEqual(sum(begin["args"]["bytes"] for begin, _ in reads), cold["bytes_read"])
        self.assertGreaterEqual(sum(e["args"]["bytes"] for e in begun), cold["bytes_read"])

    def check_picture(self, trace):
        svg = self.folder / "t.svg"
        subprocess.run([sys.executable, DRAW, self.path, svg, "--step", "1", "--layers", "3-5"],
                       check=True)
        titles = [title.text for title in
                  xml.etree.ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}title")]
        layers = [title.split(":")[0] for title in titles if title.startswith("layer ")]
        self.assertEqual(layers, ["layer 3", "layer 4", "layer 5"])
        step = trace.spans(cat="step", name="generation step")[1]
        drawn = [e for e in trace.spans(name="attention")
                 if inside(e, step) and e["args"]["layer"] in (3, 4, 5)]
        self.assertEqual(sum(title.startswith("attention:") for title in titles), len(drawn))

    def test_changes_nothing_else(self):
        traced = self.report_of(*self.traced_run("-q", "--ubatch", 64))
        command = self.traced_run("-q", "--ubatch", 64, "--no-resume")
        at = command.index("--trace")
        plain = self.report_of(*command[:at], *command[at + 2:])
        self.assertEqual(traced["text"], plain["text"])
        self.assertEqual(traced["logits_hash"], plain["logits_hash"])

    def test_a_resumed_prompt_shows_what_was_loaded(self):
        self.succeed(*self.traced_run("-q"))
        report = self.report_of(*self.traced_run("-q"))
        self.assertGreater(report["reused_tokens"], 0)
        trace = Trace(self.path)
        self.check_nesting(trace)
        resume, = trace.spans(name="resume")
        loads = trace.spans(name="load group")
        self.assertTrue(loads)
        self.assertTrue(all(inside(load, resume) for load in loads))

    def test_bench_decode(self):
        self.succeed("bench", "decode", "-m", program.model("llama-hd128"), "--context", 64,
                     "--rounds", 1, "--tokens", 2, "--threads", 1, "--json", "--trace", self.path)
        trace = Trace(self.path)
        self.check_nesting(trace)
        rounds = trace.spans(name="round")
        steps = trace.spans(name="generation step")
        self.assertEqual(len(rounds), 2)  # one warms up
        self.assertEqual(len(steps), 4)
        self.assertTrue(all(any(inside(step, each) for each in rounds) for step in steps))


class Writing(TraceTest):
    def test_a_file_that_cannot_be_made_is_refused_before_the_work(self):
        nowhere = self.folder / "none" / "t.json"
        pipe = self.folder / "pipe"
        subprocess.run(["mkfifo", pipe], check=True)
        for path in nowhere, pipe, self.folder:
            with self.subTest(path=path):
                self.refused("run", "-m", "none.gguf", "-p", "x", "--trace", path,
                             words=["trace file", path])
                self.refused("bench", "decode", "-m", "none.gguf", "--trace", path,
                             words=["trace file", path])
        self.refused("run", "-m", "none.gguf", "-p", "x", "--trace", "", status=2,
                     words=["not the name of a file"])

    def test_is_written_when_the_run_is_interrupted(self):
        command = self.traced_run()
        command[command.index("-n") + 1] = "2000"
        child = self.start(*command)
        self.assertTrue(child.stdout.read(1))
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=program.TIMEOUT_S)
        self.assertEqual(child.returncode, 130)
        self.check_what_was_done()

    def test_is_written_when_the_run_fails(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([program.PROGRAM, *self.traced_run("-q")], stdout=full,
                                  stderr=subprocess.PIPE, timeout=program.TIMEOUT_S, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"standard output", done.stderr)
        self.check_what_was_done()

    def check_what_was_done(self):
        trace = Trace(self.path)
        self.check_nesting(trace)
        self.assertTrue(trace.spans(name="prompt step"))
        self.assertTrue(trace.pairs("read"))
        self.assertEqual(self.leftovers_beside(), [])

    def test_without_the_option_there_is_no_file(self):
        self.succeed(*self.run_command("llama-32l", "-q"))
        self.assertEqual([path.name for path in self.folder.iterdir()], ["gpl.txt"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
