"""`hifc store`: what it says of a flash directory, sound or damaged, and what it leaves there."""

import fcntl
import json
import os
import subprocess
import unittest

import program

PAGE = 4096
SEGMENT = 1 << 20
LANE = 16 << 10
BATCH = PAGE + 8 * LANE  # four values of two lanes
SEGMENT_VALUES = 28  # seven batches
VALUES = 100
FILES = [f"hifc-{number:08}.seg" for number in range(4)]
# The layout tag of version 255, of a HiFC to come.
NEWER = b"HIFCSEG\n" + (255).to_bytes(4, "little") + (0x48e2c602).to_bytes(4, "little")


def key(number):
    return number.to_bytes(32, "little").hex()


class Store(program.ProgramTest):
    def setUp(self):
        super().setUp()
        self.make(VALUES)

    def make(self, values):
        done = subprocess.run([os.environ["HIFC_MAKE_STORE"], str(self.flash), str(values)],
                              capture_output=True, timeout=program.TIMEOUT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr.decode())

    def contents(self):
        return {path.name: path.read_bytes() for path in self.flash.iterdir()}

    def flip(self, name, offset):
        with open(self.flash / name, "r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0xFF]))

    def tool(self, name, *more, status=0):
        done = program.hifc("store", name, self.flash, *more, "--json")
        self.assertEqual(done.returncode, status, done.stderr.decode())
        self.assertEqual(done.stderr, b"")
        return json.loads(done.stdout)

    def text(self, name, *more, status=0):
        done = program.hifc("store", name, self.flash, *more)
        self.assertEqual(done.returncode, status, done.stderr.decode())
        self.assertEqual(done.stderr, b"")
        return done.stdout.decode()

    def damaged(self):
        return {value["key"] for value in self.tool("verify", status=1)["damaged_values"]}

    def repaired(self, values):
        """A repair leaves these many values, which verify before and after a store was there."""
        self.tool("repair")
        for _ in range(2):
            found = self.tool("verify")
            self.assertTrue(found["intact"])
            self.assertEqual(found["values"], values)
            self.make(0)


class Sound(Store):
    def test_stat(self):
        found = self.tool("stat")
        self.assertEqual(found["directory"], str(self.flash))
        self.assertEqual(found["bytes_on_disk"], 4 * SEGMENT)
        self.assertEqual(found["segments"], {"total": 4, "free": 0, "open": 1, "sealed": 3,
                                             "damaged": 0, "unreadable": 0})
        self.assertEqual(found["values"], VALUES)
        self.assertEqual(found["value_bytes"], VALUES * 2 * LANE)
        self.assertEqual(found["checkpointed_bytes"], VALUES // 4 * BATCH)
        self.assertEqual(found["scan_bytes"], 0)
        self.assertEqual(found["overwrites"], {"min": 0, "mean": 0, "max": 0})
        self.assertEqual([found["oldest_segment"], found["newest_segment"]],
                         [FILES[0], FILES[-1]])
        self.assertNotIn("segment_list", found)

    def test_segments(self):
        rows = self.tool("stat", "--segments")["segment_list"]
        self.assertEqual([row["file"] for row in rows], FILES)
        self.assertEqual([row["number"] for row in rows], [1, 2, 3, 4])
        self.assertEqual([row["values"] for row in rows], [28, 28, 28, 16])
        lines = self.text("stat", "--segments").splitlines()
        self.assertEqual([line.split()[0] for line in lines[-4:]], FILES)

    def test_what_was_put_again_is_superseded(self):
        self.make(SEGMENT_VALUES)
        found = self.tool("stat")
        self.assertEqual(found["values"], VALUES)
        self.assertEqual(found["replaced_values"], SEGMENT_VALUES)
        self.assertEqual(self.tool("verify")["superseded_values"], SEGMENT_VALUES)
        self.flip(FILES[0], 2 * PAGE)
        found = self.tool("verify", status=1)
        self.assertEqual(found["damaged_current_values"], 0)
        self.assertEqual(found["damaged_values"][0]["fate"], "replaced")

    def test_nothing_to_do_changes_nothing(self):
        before = self.contents()
        self.assertIn("all intact", self.text("verify"))
        self.assertIn("nothing is damaged", self.text("repair"))
        self.text("stat")
        self.text("trim", "--to", "4MiB")
        self.assertEqual(self.contents(), before)


class Damaged(Store):
    def test_payload(self):
        self.flip(FILES[1], 2 * PAGE + 5 * LANE + 77)  # lane 1 of the second value
        found = self.tool("verify", status=1)
        self.assertEqual(found["damaged_records"], [])
        self.assertEqual(found["damaged_values"], [{
            "key": key(SEGMENT_VALUES + 1), "fate": "current", "file": FILES[1],
            "offset": 2 * PAGE + 5 * LANE, "lanes": [1], "problem": "the checksum is wrong"}])
        self.assertIn(key(SEGMENT_VALUES + 1), self.text("verify", status=1))
        self.repaired(VALUES - 1)

    def test_batch_header(self):
        self.flip(FILES[1], PAGE + BATCH + 100)
        self.assertEqual(self.damaged(), {key(number) for number in range(32, 36)})
        self.repaired(VALUES - 4)

    def test_checkpoint(self):
        self.flip(FILES[1], SEGMENT - 500)
        self.assertEqual(self.tool("verify", status=1)["damaged_records"][0]["part"], "checkpoint")
        self.repaired(VALUES)

    def test_segment_header(self):
        self.flip(FILES[1], 20)
        record = self.tool("verify", status=1)["damaged_records"][0]
        self.assertEqual([record["part"], record["file"]], ["segment header", FILES[1]])
        planned = self.tool("repair", "--dry-run")["removed_files"]
        self.assertEqual(planned, [{"file": FILES[1], "bytes": SEGMENT, "values": None}])
        self.assertIn("unknown", self.text("repair", "--dry-run"))
        self.repaired(VALUES - SEGMENT_VALUES)
        self.assertFalse((self.flash / FILES[1]).exists())

    def test_cut_off(self):
        before = self.contents()
        # Of the batch that is cut, the values whose second lane is still there are left.
        for percent, left in (0, 0), (10, 1), (50, 14), (90, 27):
            with self.subTest(percent=percent):
                os.truncate(self.flash / FILES[1], SEGMENT * percent // 100)
                self.assertFalse(self.tool("verify", status=1)["intact"])
                self.repaired(VALUES - SEGMENT_VALUES + left)
                for name, data in before.items():
                    (self.flash / name).write_bytes(data)

    def test_cut_off_in_its_header(self):
        before = (self.flash / FILES[1]).read_bytes()
        for size in 4095, 100:
            (self.flash / FILES[1]).write_bytes(before[:size])
            found = self.tool("verify", status=1)
            self.assertEqual(found["foreign_files"], [])
            self.assertEqual([record["file"] for record in found["damaged_records"]], [FILES[1]])
        self.repaired(VALUES - SEGMENT_VALUES)
        self.assertFalse((self.flash / FILES[1]).exists())

    def test_dry_run_changes_nothing(self):
        self.flip(FILES[1], 20)
        self.flip(FILES[2], 3 * PAGE)
        before = self.contents()
        planned = self.tool("repair", "--dry-run")
        self.assertTrue(planned["dry_run"])
        self.assertEqual([row["file"] for row in planned["removed_files"]], [FILES[1]])
        self.assertEqual(planned["rewritten_files"], [FILES[2]])
        self.assertEqual(self.contents(), before)

    def test_files_of_others_stay(self):
        others = {"notes.txt": b"mine", "hifc-00000042.seg": b"\x01" * 9000}
        for name, data in others.items():
            (self.flash / name).write_bytes(data)
        self.flip(FILES[1], 20)
        for name, status in ("stat", 0), ("verify", 1), ("repair", 0):
            self.assertEqual(self.tool(name, status=status)["foreign_files"], sorted(others))
        self.tool("trim", "--to", "0")
        self.assertEqual(self.contents(), others)


class Trimmed(Store):
    def test_oldest_first(self):
        planned = self.tool("trim", "--to", "2.5MiB", "--dry-run")
        done = self.tool("trim", "--to", "2.5MiB")
        self.assertEqual([row["file"] for row in done["removed_files"]], FILES[:2])
        self.assertEqual(planned["removed_files"], done["removed_files"])
        self.assertEqual([done["bytes_before"], done["bytes_after"]], [4 * SEGMENT, 2 * SEGMENT])
        self.assertEqual(sorted(self.contents()), FILES[2:])
        self.assertEqual(self.tool("verify")["values"], VALUES - 2 * SEGMENT_VALUES)

    def test_to_nothing(self):
        self.assertEqual(self.tool("trim", "--to", 0)["bytes_after"], 0)
        self.assertEqual(self.contents(), {})


class Refused(Store):
    COMMANDS = (("stat",), ("verify",), ("repair",), ("trim", "--to", "0"))

    def all_refuse(self, directory, words):
        for command, *more in self.COMMANDS:
            with self.subTest(command=command):
                self.refused("store", command, directory, *more, words=words)

    def test_in_use(self):
        with open(self.flash / "hifc.lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.all_refuse(self.flash, [self.flash, "in use"])

    def test_a_file_of_the_user_with_the_name_of_the_lock(self):
        (self.flash / "hifc.lock").write_text("mine", encoding="ascii")
        before = self.contents()
        self.all_refuse(self.flash, [self.flash / "hifc.lock", "not empty"])
        self.assertEqual(self.contents(), before)

    def test_missing_directories_are_not_created(self):
        self.all_refuse(self.folder / "none", [self.folder / "none"])
        self.assertFalse((self.folder / "none").exists())

    def test_newer_layouts_are_left_untouched(self):
        path = self.flash / FILES[1]
        path.write_bytes(NEWER + path.read_bytes()[len(NEWER):])
        before = self.contents()
        self.all_refuse(self.flash, [FILES[1], "newer HiFC", "255"])
        self.assertEqual(self.contents(), before)

    def test_mistakes(self):
        self.refused("store", "trim", self.flash, words=["--to"], status=2)
        self.refused("store", "trim", self.flash, "--to", "much", words=["much"], status=2)
        self.refused("store", "stat", status=2)
        self.refused("store", "verify", self.flash, "--dry-run", words=["--dry-run"], status=2)
        self.refused("store", "stat", self.flash / FILES[0], words=["Not a directory"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
