// Opens stores whose segment files have been tampered with.
//
// Strategy: three images of a directory, of a store that was closed, one that was killed and one
// that is full, are made once. An input picks one and edits its files: bytes replaced, pages
// zeroed or copied from another place or another file (as after misdirected and lost writes), files
// cut off or lengthened. Half the time, the checksums of headers and checkpoints are then made
// right, which no damage does, but which leads the fuzzer past them.
//
// Invariants:
// - recovery, inspection, repair and a store that reads and writes neither fail a check of ours nor
//   wait for ever, whatever the files hold;
// - what recovery lists lies within the file and in the segment it is listed for;
// - where no checksum was forged, what verifies is what was put; and after a repair, inspection
//   finds nothing damaged and a store finds each value that was intact before.
#include <fmt/format.h>
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/log.h"
#include "flash/recovery.h"
#include "flash/repair.h"
#include "flash/store_fixture.h"
#include "testing/sim_clock.h"
#include "testing/sim_disk.h"
#include "testing/sim_ring.h"

namespace hifc::flash {
namespace {

using Bytes = std::vector<std::byte>;
using Files = std::vector<std::pair<std::string, Bytes>>;

constexpr const char* kDirectory = "/store";
constexpr uint64_t kCapacityBytes = 256u << 10;
constexpr uint64_t kSegmentBytes = 64u << 10;
constexpr uint64_t kFileBytesMax = 96u << 10;
constexpr uint64_t kIds = 12;
constexpr ValueShape kShapes[] = {
    {.lanes = 1, .lane_bytes = 4096, .chunk_bytes = 4096},
    {.lanes = 2, .lane_bytes = 8192, .chunk_bytes = 4096},
    {.lanes = 3, .lane_bytes = 4096, .chunk_bytes = 8192, .lane_bytes_max = 12288}};

// What the input does, for people; printed with what it breaks, and first with HIFC_LOG=debug.
std::string story;

template <typename... Args>
void tell(fmt::format_string<Args...> format, Args&&... args) {
  story += "  " + fmt::format(format, std::forward<Args>(args)...) + "\n";
}

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "invariant broken: %s\n%s", what, story.c_str());
  std::abort();
}

// ---- a store that is used ----

// A disk and what is needed to use a store on it.
struct Machine {
  testing::SimDisk disk{{}};
  testing::SimClock clock;
  testing::SimRing ring{{}, {.disk = &disk, .clock = &clock}};

  Result<std::unique_ptr<Store>> open(uint64_t capacity_bytes = kCapacityBytes) {
    return Store::open({.directory = kDirectory,
                        .capacity_bytes = capacity_bytes,
                        .segment_bytes = kSegmentBytes,
                        .free_space_floor_bytes = 0,
                        .seed = 1,
                        .file_system = &disk,
                        .clock = &clock},
                       ring);
  }
  Result<std::unique_ptr<Directory>> directory() {
    return Directory::open(kDirectory, disk, Directory::Missing::kRefuse);
  }
};

// The completion of what `start` begins; an error where it does not even begin.
template <typename T, typename Start>
Result<T> wait_for(Store& store, Start start) {
  std::optional<Result<T>> outcome;
  HIFC_TRY(start([&](Result<T> result) { outcome = std::move(result); }));
  while (!outcome) expect(store.wait() > 0, "everything completes");
  return std::move(*outcome);
}

Handle find(Store& store, uint64_t id) {
  auto handle = wait_for<Handle>(store, [&](auto done) {
    return store.pin(key_of(id), [done](Handle found) mutable { done(std::move(found)); });
  });
  return handle ? std::move(*handle) : Handle();
}

bool put(Store& store, const TestBatch& batch) {
  const auto handles = wait_for<std::vector<Handle>>(store, [&](auto done) {
    return store.put(batch.shape.batch(), batch.values, std::move(done));
  });
  return handles.has_value();
}

Result<void> flush(Store& store) {
  return wait_for<void>(store, [&](auto done) { return store.flush(std::move(done)); });
}

// ---- images ----

// Every content that has ever been put under an id.
using Contents = std::map<uint64_t, std::vector<Bytes>>;

struct Image {
  Files files;
  Contents contents;
  std::set<uint64_t> removed;
};

class Maker {
 public:
  Maker() : store_(std::move(*machine_.open())) {}

  void put(const ValueShape& shape, const std::vector<uint64_t>& ids) {
    ++version_;
    expect(flash::put(*store_, TestBatch(shape, ids, version_)), "an image can be made");
    for (const uint64_t id : ids) {
      image_.contents[id].push_back(content(shape, id));
    }
  }
  void remove(uint64_t id) {
    store_->remove(key_of(id));
    image_.removed.insert(id);
  }
  void flush() { expect(flash::flush(*store_).has_value(), "an image can be made durable"); }

  Image close() {
    store_.reset();
    return taken();
  }
  Image kill() {
    Image image = taken();
    store_.reset();
    return image;
  }

 private:
  // Lane after lane.
  Bytes content(const ValueShape& shape, uint64_t id) const {
    Bytes bytes(shape.value_bytes(id, version_));
    std::span<std::byte> rest = bytes;
    for (uint32_t lane = 0; lane < shape.lanes; ++lane) {
      const uint64_t length = shape.length(id, version_, lane);
      fill_lane(id, version_, lane, rest.first(length));
      rest = rest.subspan(length);
    }
    return bytes;
  }

  Image taken() {
    for (const std::string& path : machine_.disk.paths())
      if (path.ends_with(".seg")) image_.files.emplace_back(path, machine_.disk.read(path));
    return std::move(image_);
  }

  Machine machine_;
  std::unique_ptr<Store> store_;
  Image image_;
  uint64_t version_ = 0;
};

void fill_some(Maker& maker) {
  maker.put(kShapes[0], {0, 1, 2});
  maker.put(kShapes[1], {3, 4});
  maker.remove(1);
  maker.flush();
  maker.put(kShapes[2], {6, 7});
  maker.put(kShapes[0], {0, 5});
}

std::vector<Image> make_images() {
  std::vector<Image> images;
  Maker closed, killed, full;
  fill_some(closed);
  images.push_back(closed.close());
  fill_some(killed);
  images.push_back(killed.kill());
  for (uint64_t i = 0; i < 12; ++i) full.put(kShapes[i % 3], {i % kIds, (i + 5) % kIds});
  full.remove(3);
  images.push_back(full.close());
  return images;
}

// ---- edits ----

uint64_t page_in(FuzzedDataProvider& data, const Bytes& file) {
  const uint64_t pages = file.size() / kPageBytes;
  return pages == 0 ? 0 : data.ConsumeIntegralInRange<uint64_t>(0, pages - 1) * kPageBytes;
}

// In the header of the segment, in its checkpoint's trailer, or in anything that begins a page.
uint64_t place_in(FuzzedDataProvider& data, const Bytes& file) {
  switch (data.ConsumeIntegralInRange<uint32_t>(0, 3)) {
    case 0: return data.ConsumeIntegralInRange<uint64_t>(0, sizeof(SegmentHeader) - 1);
    case 1:
      return file.size() - std::min<uint64_t>(file.size(), data.ConsumeIntegralInRange<uint64_t>(
                                                               1, sizeof(CheckpointTrailer)));
    default: return page_in(data, file) + data.ConsumeIntegralInRange<uint64_t>(0, 255);
  }
}

void replace_bytes(FuzzedDataProvider& data, Bytes& file) {
  const uint64_t at = place_in(data, file);
  const auto bytes = data.ConsumeBytes<uint8_t>(data.ConsumeIntegralInRange<size_t>(1, 8));
  for (size_t i = 0; i < bytes.size() && at + i < file.size(); ++i)
    file[at + i] = std::byte{bytes[i]};
  tell("bytes from {} on: {:02x}", at, fmt::join(bytes, " "));
}

void copy_pages(FuzzedDataProvider& data, const Bytes& source, Bytes& target) {
  const uint64_t from = page_in(data, source), to = page_in(data, target);
  const uint64_t pages = data.ConsumeIntegralInRange<uint64_t>(1, 16);
  const uint64_t bytes = std::min({pages * kPageBytes, source.size() - from, target.size() - to});
  if (bytes > 0) std::memmove(target.data() + to, source.data() + from, bytes);
  tell("{} bytes from {} on: those from {} on", bytes, to, from);
}

void zero_pages(FuzzedDataProvider& data, Bytes& file) {
  const uint64_t begin = page_in(data, file);
  const uint64_t pages = data.ConsumeIntegralInRange<uint64_t>(1, 4);
  const uint64_t bytes = std::min(pages * kPageBytes, file.size() - begin);
  std::fill_n(file.begin() + begin, bytes, std::byte{0});
  tell("{} bytes from {} on: zeros", bytes, begin);
}

void resize(FuzzedDataProvider& data, Bytes& file) {
  file.resize(data.ConsumeIntegralInRange<size_t>(0, kFileBytesMax));
  tell("length {}", file.size());
}

void edit(FuzzedDataProvider& data, Files& files) {
  const auto pick = [&]() -> Bytes& {
    auto& [path, bytes] = files[data.ConsumeIntegralInRange<size_t>(0, files.size() - 1)];
    tell("{}", path);
    return bytes;
  };
  Bytes& file = pick();
  switch (data.ConsumeIntegralInRange<uint32_t>(0, 9)) {
    case 0: return copy_pages(data, pick(), file);
    case 1: return zero_pages(data, file);
    case 2: return resize(data, file);
    default: return replace_bytes(data, file);
  }
}

// ---- forged checksums ----

template <typename T>
T read_as(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

void seal(std::span<std::byte> bytes, size_t field, uint64_t nonce) {
  const std::span<const std::byte> view = bytes;
  const uint64_t sum =
      checksum(view.subspan(field + sizeof(uint64_t)), checksum(view.first(field), nonce));
  std::memcpy(bytes.data() + field, &sum, sizeof sum);
}

// Makes the checksums of whatever looks like a header or a checkpoint right.
void seal_all(std::span<std::byte> file) {
  if (file.size() < 2 * kPageBytes) return;
  // What grows with these is not the fuzzer's to find: a repair gives the file the length that its
  // header says, on a disk in memory, and the store has a table of the numbers in between.
  const auto said = read_as<SegmentHeader>(file);
  if (said.segment_bytes > kFileBytesMax || said.number > 1u << 16) return;
  const auto tag = file.first(offsetof(LayoutTag, checksum));
  const auto tag_sum = static_cast<uint32_t>(checksum(tag));
  std::memcpy(file.data() + tag.size(), &tag_sum, sizeof tag_sum);
  seal(file.first(kSegmentHeaderBytes), offsetof(SegmentHeader, checksum), 0);
  const auto header = read_as<SegmentHeader>(file);
  for (uint64_t at = kPageBytes; at + kPageBytes <= file.size(); at += kPageBytes) {
    const uint64_t length = read_as<BatchHeader>(file.subspan(at)).header_bytes;
    if (looks_like_batch(file.subspan(at)) && length >= sizeof(BatchHeader) &&
        length <= file.size() - at)
      seal(file.subspan(at, length), offsetof(BatchHeader, checksum), header.nonce);
  }
  if (!looks_like_checkpoint(file)) return;
  const size_t trailer = file.size() - sizeof(CheckpointTrailer);
  const uint64_t begin = read_as<CheckpointTrailer>(file.subspan(trailer)).begin_bytes;
  if (begin <= trailer)
    seal(file.subspan(begin), trailer - begin + offsetof(CheckpointTrailer, checksum),
         header.nonce);
}

// ---- invariants ----

struct Subject {
  const Image& image;
  Files files;
  bool forged = false;
};

void write_files(Machine& machine, const Subject& subject) {
  expect(machine.disk.create_directory(kDirectory).has_value(), "a directory can be made");
  for (const auto& [path, bytes] : subject.files) machine.disk.write(path, bytes);
}

// A newer version, or more than fits in the capacity and nobody may touch.
void expect_refusal(const Error& error) {
  expect(error.code == Code::kUnsupported || error.code == Code::kFull,
         "a directory is refused for what is in it");
}

void check_recovery(Machine& machine) {
  const auto directory = machine.directory();
  expect(directory.has_value(), "a directory can be opened");
  const auto recovery = recover(**directory, machine.ring, {});
  if (!recovery) return expect_refusal(recovery.error());
  std::set<uint32_t> numbers;
  for (const auto& segment : recovery->segments) {
    if (segment->free()) continue;
    expect(numbers.insert(segment->number).second, "a number is used once");
    if (segment->state == Segment::State::kOpen)
      expect(segment->tail_bytes <= segment->size_bytes, "an open segment ends in its file");
    for (const CheckpointEntry& entry : segment->entries) {
      if (entry.removal != 0) continue;
      expect(entry.batch_page * kPageBytes < segment->tail_bytes, "a value lies in the log");
      expect(entry.batch_page * kPageBytes < segment->size_bytes, "a value lies in the file");
    }
  }
}

// Whether the value is found and verifies.
bool read_value(Store& store, uint64_t id, const Subject& subject) {
  const Handle handle = find(store, id);
  if (!handle) return false;
  expect(handle.bytes() <= kFileBytesMax, "a value is no larger than its file");
  Bytes all;
  for (uint32_t lane = 0; lane < handle.lanes(); ++lane) {
    const uint64_t lane_bytes = handle.lane_bytes(lane);
    auto memory = *io::AlignedMemory::allocate(lane_bytes);
    const LaneRead run{.handle = &handle, .memory = memory.data()};
    const auto outcome = wait_for<void>(
        store, [&](auto done) { return store.read(lane, {&run, 1}, std::move(done)); });
    const auto bytes = std::span<const std::byte>(memory.span()).first(lane_bytes);
    if (!outcome || !store.verify(handle, lane, bytes)) {
      store.quarantine(handle);
      return false;
    }
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  if (!subject.forged) {
    const auto known = subject.image.contents.find(id);
    expect(known != subject.image.contents.end(), "only what was put is found");
    expect(std::ranges::find(known->second, all) != known->second.end(),
           "what verifies is what was put");
  }
  return true;
}

std::set<uint64_t> read_all(Store& store, const Subject& subject) {
  std::set<uint64_t> ids;
  for (uint64_t id = 0; id < kIds; ++id)
    if (read_value(store, id, subject)) ids.insert(id);
  return ids;
}

void check_store(Machine& machine, const Subject& subject) {
  auto store = machine.open();
  if (!store) return expect_refusal(store.error());
  const std::set<uint64_t> found = read_all(**store, subject);
  expect((*store)->statistics().bytes_on_disk <= kCapacityBytes, "the capacity is a bound");
  // Enough to fill what is open and to begin a segment.
  for (uint64_t i = 0; i < 4; ++i) {
    const std::vector<uint64_t> ids = {100 + 2 * i, 101 + 2 * i};
    if (!put(**store, TestBatch(kShapes[1], ids, 1))) continue;
    expect(static_cast<bool>(find(**store, ids[0])), "what was just put is found");
  }
  (void)(*store)->remove(key_of(100));
  (void)flush(**store);
  store->reset();
  auto again = machine.open();
  if (again) (void)read_all(**again, subject);
}

// With room for files that were cut off and get their length back.
std::set<uint64_t> values_found(Machine& machine, const Subject& subject) {
  auto store = machine.open(4 * kCapacityBytes);
  return store ? read_all(**store, subject) : std::set<uint64_t>();
}

void check_repair(Machine& machine, const Subject& subject) {
  Machine untouched;
  write_files(untouched, subject);
  std::set<uint64_t> before = values_found(untouched, subject);
  // A removal that was cut off may come back with the file's length.
  for (const uint64_t id : subject.image.removed) before.erase(id);
  {
    const auto directory = machine.directory();
    expect(directory.has_value(), "a directory can be opened");
    const auto repaired = repair(**directory, machine.ring, {}, Execution::kApply);
    if (!repaired) return expect_refusal(repaired.error());
    if (subject.forged || !repaired->unrepaired.empty()) return;
    const auto inspection = inspect(**directory, machine.ring, {.depth = Depth::kPayload});
    expect(inspection.has_value() && inspection->intact(), "repair leaves nothing damaged");
  }
  const std::set<uint64_t> after = values_found(machine, subject);
  tell("found {} before, {} after", fmt::join(before, " "), fmt::join(after, " "));
  expect(std::ranges::includes(after, before), "repair loses nothing that was intact");
}

}  // namespace
}  // namespace hifc::flash

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  // Directories that are damaged on purpose have a lot to warn about.
  return setenv("HIFC_LOG", "error", /*overwrite=*/0);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace hifc::flash;
  static const std::vector<Image> images = make_images();
  FuzzedDataProvider data(bytes, size);
  const size_t number = data.ConsumeIntegralInRange<size_t>(0, images.size() - 1);
  const Image& image = images[number];
  Subject subject{.image = image, .files = image.files, .forged = data.ConsumeBool()};
  const bool repairs = data.ConsumeBool();
  story.clear();
  tell("image {}, {}, {}", number, subject.forged ? "forged" : "damaged",
       repairs ? "repaired" : "opened");
  for (size_t left = data.ConsumeIntegralInRange<size_t>(1, 6); left > 0; --left)
    edit(data, subject.files);
  if (subject.forged)
    for (auto& [path, file] : subject.files) seal_all(file);
  hifc::log_debug("an input:\n{}", story);
  Machine machine;
  write_files(machine, subject);
  check_recovery(machine);
  repairs ? check_repair(machine, subject) : check_store(machine, subject);
  return 0;
}
