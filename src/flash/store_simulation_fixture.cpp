#include "flash/store_simulation_fixture.h"

#include <algorithm>
#include <numeric>

namespace hifc::flash {
namespace {

constexpr uint64_t kKeys = 40;
constexpr ValueShape kShapes[] = {
    {.lanes = 1, .lane_bytes = 4096, .chunk_bytes = 4096},
    {.lanes = 3, .lane_bytes = 12288, .chunk_bytes = 8192},
    {.lanes = 2, .lane_bytes = 16384, .chunk_bytes = 65536},
    {.lanes = 4, .lane_bytes = 4096, .chunk_bytes = 8192, .lane_bytes_max = 28672},
};
constexpr const char* kDirectory = "/store";

}  // namespace

Simulation::Simulation(const SimulationOptions& options)
    : options_(options), random_(options.seed), disk_({.seed = options.seed}) {
  draw_sizes();
}

void Simulation::draw_sizes() {
  capacity_bytes_ = (128u << 10) + draw(1u << 20) / 4096 * 4096;
  segment_bytes_ = (16u << 10) + draw(256u << 10) / 4096 * 4096;
}

Simulation::~Simulation() {
  store_.reset();
}

testing::FaultPlan Simulation::plan(double fault_chance) {
  testing::FaultPlan plan{.seed = random_(),
                          .read_error = fault_chance,
                          .write_error = fault_chance,
                          .sync_error = syncs_fail() ? fault_chance : 0,
                          .no_space = fault_chance,
                          .short_read = fault_chance,
                          .delay_polls_max = static_cast<uint32_t>(draw(5))};
  if (options_.device == Device::kDishonest)
    plan.bit_flip = plan.torn_write = plan.lost_write = plan.misdirected_write =
        plan.misdirected_read = fault_chance;
  if (options_.device == Device::kHanging) plan.hang = fault_chance;
  return plan;
}

Result<std::unique_ptr<Store>> Simulation::try_open() {
  ring_ = std::make_unique<testing::SimRing>(
      testing::FaultPlan{.seed = random_()},
      testing::SimRingOptions{
          .depth = 1 + static_cast<uint32_t>(draw(12)), .disk = &disk_, .clock = &clock_});
  return Store::open({.directory = kDirectory,
                      .capacity_bytes = capacity_bytes_,
                      .segment_bytes = segment_bytes_,
                      .free_space_floor_bytes = 0,
                      .seed = options_.seed + last_version_ + 1,
                      .file_system = &disk_,
                      .clock = &clock_},
                     *ring_);
}

void Simulation::open() {
  auto store = try_open();
  if (!disk_.powered()) {
    store = failure(Code::kIo, "the power went while opening");
    disk_.crash(testing::Crash::kPower);
    store = try_open();
  }
  if (!store && options_.device == Device::kDishonest && store.error().code == Code::kFull)
    return give_up();
  ASSERT_TRUE(store) << store.error().message();
  store_ = std::move(*store);
}

// Segments damaged beyond recognition are left alone, and may be more than the capacity allows.
void Simulation::give_up() {
  for (const std::string& path : disk_.paths()) (void)disk_.remove(path);
  ring_.reset();
  auto store = try_open();
  ASSERT_TRUE(store) << store.error().message();
  store_ = std::move(*store);
}

void Simulation::run() {
  open();
  if (::testing::Test::HasFatalFailure()) return;
  ring_->set_plan(plan(options_.fault_chance));
  if (options_.crash_after > 0) disk_.crash_after(options_.crash_after);
  for (uint32_t i = 0; i < options_.steps && !::testing::Test::HasFailure(); ++i) {
    if (!disk_.powered()) crash();
    step();
    if (store_ && disk_.powered()) check_bytes();
  }
  if (!::testing::Test::HasFailure()) finish();
}

void Simulation::step() {
  switch (draw(20)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
    case 5: return put();
    case 6:
    case 7:
    case 8:
    case 9:
    case 10: return read(draw(kKeys));
    case 11: return remove();
    case 12:
    case 13: return flush();
    case 14: return draw(3) == 0 ? restart() : put();
    case 15: return draw(4) == 0 ? crash() : put();
    case 16: return draw(4) == 0 ? damage() : put();
    case 17: return draw(6) == 0 ? change_capacity() : put();
    default: store_->poll();
  }
}

ValueShape Simulation::draw_shape() {
  ValueShape shape = kShapes[draw(std::size(kShapes))];
  shape.seed = random_();
  return shape;
}

void Simulation::put() {
  const ValueShape shape = draw_shape();
  std::set<uint64_t> ids;
  for (uint64_t i = 0, count = 1 + draw(6); i < count; ++i) ids.insert(draw(kKeys));
  const uint64_t version = ++last_version_;
  auto batch =
      std::make_shared<TestBatch>(shape, std::vector<uint64_t>(ids.begin(), ids.end()), version);
  const auto accepted =
      store_->put(shape.batch(), batch->values,
                  [this, batch, version](const Result<std::vector<Handle>>& handles) {
                    for (const uint64_t id : batch->ids)
                      for (Event& event : histories_[id])
                        if (event.version == version)
                          (handles ? event.completed : event.failed) = true;
                  });
  if (!accepted) {
    const Code code = accepted.error().code;
    EXPECT_TRUE(code == Code::kFull || code == Code::kBusy || code == Code::kIo ||
                code == Code::kTimeout)
        << accepted.error().message();
    return;
  }
  shapes_[version] = shape;
  for (const uint64_t id : ids) {
    histories_[id].push_back({.serial = version, .version = version});
    ever_put_[id].insert(version);
  }
}

void Simulation::remove() {
  const uint64_t id = draw(kKeys);
  if (!store_->remove(key_of(id))) return;
  EXPECT_FALSE(store_->contains(key_of(id)));
  // What is still being put comes after the removal in the log.
  History& history = histories_[id];
  const auto pending = std::ranges::find_if(
      history, [](const Event& event) { return !event.completed && !event.failed; });
  history.insert(pending, {.serial = ++last_version_, .completed = true});
}

const Simulation::Event* Simulation::latest(uint64_t id) const {
  const auto history = histories_.find(id);
  if (history == histories_.end()) return nullptr;
  const Event* last = nullptr;
  for (const Event& event : history->second)
    if (event.completed) last = &event;
  return last != nullptr && last->version != 0 ? last : nullptr;
}

void Simulation::read(uint64_t id) {
  const Event* const expected = latest(id);
  if (!store_->contains(key_of(id))) return;
  if (options_.device == Device::kHonest && !damaged_)
    EXPECT_TRUE(expected != nullptr) << "found what is not there: " << id;
  (void)store_->pin(key_of(id), [this, id](const Handle& handle) {
    if (handle) check_value(id, handle);
  });
}

// Reads a lane and compares it with what was put: what verifies must be one of the versions.
void Simulation::check_value(uint64_t id, const Handle& handle) {
  const auto lane = static_cast<uint32_t>(draw(handle.lanes()));
  auto memory =
      std::make_shared<io::AlignedMemory>(*io::AlignedMemory::allocate(handle.lane_bytes(lane)));
  const LaneRead run{&handle, memory->data()};
  // Freed memory that the device still writes to would be found by the address sanitizer.
  (void)store_->read(
      lane, {&run, 1},
      [this, store = store_.get(), id, lane, handle, memory](const Result<void>& result) {
        const auto bytes = memory->span().first(handle.lane_bytes(lane));
        if (!result || !store->verify(handle, lane, bytes)) {
          if (result) store->quarantine(handle);
          return;
        }
        const bool known = std::ranges::any_of(ever_put_[id], [&](uint64_t version) {
          if (shapes_.at(version).length(id, version, lane) != bytes.size()) return false;
          std::vector<std::byte> expected(bytes.size());
          fill_lane(id, version, lane, expected);
          return std::ranges::equal(expected, bytes);
        });
        EXPECT_TRUE(known) << "wrong bytes were taken for right ones: " << id;
        ++reads_verified_;
      },
      [memory] {});
}

void Simulation::flush() {
  auto covered = std::make_shared<std::set<uint64_t>>();
  for (const auto& [id, history] : histories_)
    for (const Event& event : history) covered->insert(event.serial);
  (void)store_->flush([this, covered](const Result<void>& result) {
    for (auto& [id, history] : histories_)
      for (Event& event : history) {
        if (!event.completed || event.durable) continue;
        // The store has forgotten some of what it could not sync: no later flush covers it.
        event.doubtful = event.doubtful || !result;
        event.durable = result && !event.doubtful && covered->contains(event.serial);
      }
  });
}

void Simulation::wait_all() {
  while (ring_->in_flight() > ring_->hung() && disk_.powered()) store_->wait();
}

void Simulation::restart() {
  // The device may fail while the store closes, but it answers: a store that cannot close stays
  // locked, which is another test.
  const bool faultless = draw(2) == 0;
  testing::FaultPlan closing = plan(faultless ? 0 : options_.fault_chance);
  closing.hang = 0;
  ring_->set_plan(closing);
  ring_->release_hung();
  // Closing writes what was removed, for which it may retire a segment: better now.
  bool flushed = false;
  (void)store_->flush([&](const Result<void>& result) { flushed = result.has_value(); });
  wait_all();
  if (!disk_.powered()) return crash();
  possible_.clear();
  Possible after_crash;
  for (uint64_t id = 0; id < kKeys; ++id) {
    const bool findable = store_->contains(key_of(id));
    const Event* const last = latest(id);
    after_crash[id] = possible_after_crash(id, findable);
    // A value that a failed sync made the store forget may be there all the same, or an older one.
    possible_[id] = findable && last != nullptr ? std::set<uint64_t>{last->version}
                                                : possible_after_crash(id, false);
    if (!flushed) possible_[id].insert(0), after_crash[id].insert(0);
  }
  store_.reset();
  if (!faultless || !disk_.powered()) possible_ = std::move(after_crash);
  if (!disk_.powered()) disk_.crash(testing::Crash::kPower);
  check_after_opening();
}

// The state after the last durable event, or after any later one. Nothing, where the store had
// retired the value: it tells only of the latest one whether it has.
std::set<uint64_t> Simulation::possible_after_crash(uint64_t id, bool findable) const {
  std::set<uint64_t> possible;
  const auto found = histories_.find(id);
  if (found == histories_.end()) return {0};
  bool durable = false;
  for (auto event = found->second.rbegin(); event != found->second.rend() && !durable; ++event) {
    possible.insert(event->version);
    durable = event->durable;
  }
  const Event* const last = latest(id);
  if (!findable || last == nullptr || !last->durable) possible.insert(0);
  return possible;
}

void Simulation::crash() {
  possible_.clear();
  const bool process = draw(3) == 0 && disk_.powered();
  for (uint64_t id = 0; id < kKeys; ++id)
    possible_[id] = possible_after_crash(id, store_->contains(key_of(id)));
  disk_.crash(process ? testing::Crash::kProcess : testing::Crash::kPower);
  disk_.power_off();  // nothing that the old store still does may count
  ring_->release_hung();
  store_.reset();
  ring_.reset();
  disk_.crash(testing::Crash::kProcess);
  check_after_opening();
}

void Simulation::check_after_opening() {
  open();
  if (::testing::Test::HasFatalFailure()) return;
  const bool honest = options_.device != Device::kDishonest && !damaged_;
  // Where syncs fail, systems forget what they should have written and let the next sync succeed:
  // the next process sees it in the page cache, and a power failure still takes it.
  const bool all_verify = honest && !syncs_fail();
  // What failed may have reached the device all the same, and be found now or later.
  for (const auto& [id, history] : histories_)
    for (const Event& event : history)
      if (!event.completed || event.doubtful) undead_.insert(event.version);
  for (uint64_t id = 0; id < kKeys; ++id) {
    const bool findable = store_->contains(key_of(id));
    if (honest)
      EXPECT_TRUE(findable || possible_[id].contains(0))
          << "lost what had been made durable: " << id;
    Event found;
    if (findable) {
      bool done = false;
      EXPECT_TRUE(store_->pin(key_of(id), [&](const Handle& handle) {
        done = true;
        if (all_verify) EXPECT_TRUE(handle) << "an indexed value cannot be read: " << id;
        if (!handle) return;
        for (const uint64_t version : ever_put_[id])
          if (found.version == 0 && was_put_as(handle, id, version)) found.version = version;
        if (all_verify) EXPECT_GT(found.version, 0u) << "nobody put this under " << id;
        check_value(id, handle);
      }));
      while (!done) ASSERT_GT(store_->wait(), 0u);
      if (honest && found.version != 0)
        EXPECT_TRUE(possible_[id].contains(found.version) || undead_.contains(found.version))
            << "version " << found.version << " of " << id
            << " should have been replaced: " << describe(histories_[id]);
    }
    settle(id, found);
  }
  while (ring_->in_flight() > 0) store_->wait();
  if (all_verify)
    EXPECT_EQ(store_->statistics().quarantined_values, 0u) << "an indexed value does not verify";
  check_bytes();
  damaged_ = false;
  ring_->set_plan(plan(options_.fault_chance));
}

// By the lengths of its lanes and by their checksums.
bool Simulation::was_put_as(const Handle& handle, uint64_t id, uint64_t version) const {
  const ValueShape& shape = shapes_.at(version);
  if (handle.lanes() != shape.lanes) return false;
  for (uint32_t lane = 0; lane < shape.lanes; ++lane) {
    std::vector<std::byte> expected(shape.length(id, version, lane));
    fill_lane(id, version, lane, expected);
    if (!store_->verify(handle, lane, expected)) return false;
  }
  return true;
}

std::string Simulation::describe(const History& history) {
  std::string text;
  for (const Event& event : history)
    text += fmt::format(" {}{}{}{}", event.version, event.completed ? "c" : "",
                        event.failed ? "f" : "", event.durable ? "d" : "");
  return text;
}

// What an opened store shows is where the model goes on from. It need not be durable yet, and then
// what came before it may be found by a later opening.
void Simulation::settle(uint64_t id, const Event& found) {
  History& history = histories_[id];
  const auto same = std::ranges::find_if(history, [&](const Event& event) {
    return found.version != 0 && event.version == found.version;
  });
  const auto kept_end = same == history.end() ? history.begin() : std::next(same);
  for (auto event = kept_end; event != history.end(); ++event) undead_.insert(event->version);
  history.erase(kept_end, history.end());
  if (found.version == 0) return;
  if (history.empty()) history.push_back(found);
  history.back().completed = true;
  // As in check_after_opening(): a flush may succeed without it.
  history.back().doubtful = syncs_fail() && !history.back().durable;
}

void Simulation::damage() {
  if (options_.device != Device::kDishonest) return;
  std::vector<std::string> segments;
  for (const std::string& path : disk_.paths())
    if (path.ends_with(".seg")) segments.push_back(path);
  if (segments.empty()) return;
  damaged_ = true;
  const std::string& path = segments[draw(segments.size())];
  const uint64_t size = disk_.size_bytes(path);
  if (draw(8) == 0)
    disk_.truncate(path, size * (1 + draw(9)) / 10);
  else
    for (int i = 0; i < 4 && size > 0; ++i) disk_.flip_byte(path, draw(size));
}

void Simulation::change_capacity() {
  ring_->set_plan({.seed = random_()});
  ring_->release_hung();
  wait_all();
  if (!disk_.powered()) return;
  draw_sizes();
  // The oldest may have to go: what is lost at this opening may be lost.
  possible_.clear();
  for (uint64_t id = 0; id < kKeys; ++id) {
    possible_[id] = {0};
    possible_[id].merge(possible_after_crash(id, false));
  }
  store_.reset();
  if (!disk_.powered()) disk_.crash(testing::Crash::kPower);
  check_after_opening();
}

void Simulation::check_bytes() {
  uint64_t bytes = 0;
  for (const std::string& path : disk_.paths()) bytes += disk_.size_bytes(path);
  if (!damaged_) EXPECT_EQ(store_->statistics().bytes_on_disk, bytes);
  EXPECT_LE(bytes, capacity_bytes_);
  EXPECT_LE(store_->statistics().peak_bytes_on_disk, capacity_bytes_);
}

void Simulation::finish() {
  if (!disk_.powered()) crash();
  if (::testing::Test::HasFailure()) return;
  disk_.crash_after(0);
  ring_->set_plan({.seed = random_()});
  ring_->release_hung();
  wait_all();
  // The device works again, so the store does.
  const TestBatch batch(kShapes[0], {1000});
  bool done = false;
  for (int attempt = 0; attempt < 3 && !done; ++attempt) {
    const auto accepted = store_->put(kShapes[0].batch(), batch.values,
                                      [&](const auto& result) { done = result.has_value(); });
    if (options_.device != Device::kDishonest) EXPECT_TRUE(accepted) << accepted.error().message();
    wait_all();
  }
  // Segments damaged beyond recognition may take all the room.
  if (options_.device != Device::kDishonest) {
    EXPECT_TRUE(done);
    EXPECT_TRUE(store_->contains(key_of(1000)));
  }
  store_.reset();
  for (const std::string& path : disk_.paths())
    EXPECT_TRUE(path.ends_with(".seg")) << "left behind: " << path;
}

}  // namespace hifc::flash
