#include "apps/bench_store.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "apps/bench.h"

namespace hifc::apps {
namespace {

// As much as the cache has on its way to flash at most.
constexpr uint64_t kPuttingBytes = 64u << 20;

// Verifying more than this in one go would let the device run dry.
constexpr uint64_t kVerifyBytes = 256u << 10;

uint64_t scramble(uint64_t value) {  // SplitMix64
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

double processor_s() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Begins now.
class Measurement {
 public:
  BenchStore::Speed of(uint64_t bytes) const {
    const double seconds = milliseconds(clock_.now_ns() - start_ns_) / 1000;
    const double gb = static_cast<double>(bytes) / 1e9;
    return {.gbps = gb / seconds, .core_s_per_gb = (processor_s() - start_processor_s_) / gb};
  }

 private:
  SystemClock clock_;
  uint64_t start_ns_ = clock_.now_ns();
  double start_processor_s_ = processor_s();
};

}  // namespace

flash::Key bench_key(uint64_t number) {
  flash::Key key;
  for (uint64_t i = 0; i < key.size() / sizeof(uint64_t); ++i) {
    const uint64_t word = scramble((number * 4 + i + 1) * 0x9e3779b97f4a7c15);
    std::memcpy(key.data() + i * sizeof(word), &word, sizeof(word));
  }
  return key;
}

void fill_random(std::span<std::byte> memory) {
  for (size_t at = 0; at + sizeof(uint64_t) <= memory.size(); at += sizeof(uint64_t)) {
    const uint64_t word = scramble((at + 1) * 0x9e3779b97f4a7c15);
    std::memcpy(memory.data() + at, &word, sizeof(word));
  }
}

Result<std::unique_ptr<BenchStore>> BenchStore::create(Options options) {
  std::unique_ptr<BenchStore> bench(new BenchStore(std::move(options)));
  HIFC_TRY(bench->allocate());
  HIFC_ASSIGN(bench->store_, flash::Store::open({.directory = bench->options_.directory,
                                                 .capacity_bytes = bench->options_.capacity_bytes,
                                                 .temporary = true},
                                                *bench->ring_));
  return bench;
}

Result<void> BenchStore::allocate() {
  const uint64_t putting = (kPuttingBytes + value_bytes() - 1) / value_bytes() * options_.lanes;
  const size_t buffers = std::max<uint64_t>(2 * options_.depth, putting);
  HIFC_ASSIGN(memory_, io::AlignedMemory::allocate(buffers * options_.lane_bytes));
  fill_random(memory_.span());
  for (size_t i = 0; i < buffers; ++i) free_buffers_.push_back(i);
  // Frames of a cache that has run for a while are not neighbours.
  std::ranges::shuffle(free_buffers_, random_);
  HIFC_ASSIGN(ring_, io::Ring::create({.depth = options_.depth}));
  ring_->register_memory(memory_.span());
  return {};
}

BenchStore::Goes BenchStore::until(double seconds) const {
  const uint64_t end_ns = clock_.now_ns() + static_cast<uint64_t>(seconds * 1e9);
  return [this, end_ns] { return clock_.now_ns() < end_ns && !interrupted(); };
}

// ---- writing ----

Result<void> BenchStore::fill() {
  HIFC_TRY(put([this] { return statistics().overwrites_min == 0 && !interrupted(); }));
  return check_interrupted();
}

Result<BenchStore::Speed> BenchStore::write(double seconds) {
  const uint64_t before = put_;
  const Measurement measurement;
  HIFC_TRY(put(until(seconds)));
  HIFC_TRY(check_interrupted());
  return measurement.of((put_ - before) * value_bytes());
}

Result<double> BenchStore::write_amplification(uint64_t bytes) {
  const uint64_t before = put_, written_before = statistics().written_bytes;
  const uint64_t end = before + bytes / value_bytes();
  std::vector<uint64_t> wanted;
  HIFC_TRY(put(
      [&] {
        for (const uint64_t number : std::exchange(wanted, {}))
          for (int i = 0; i < 2; ++i) keep(find(number, [](flash::Handle) {}));
        return put_ < end && !interrupted();
      },
      [&](uint64_t number) {
        if (number % 4 == 0) wanted.push_back(number);
      }));
  HIFC_TRY(check_interrupted());
  return static_cast<double>(statistics().written_bytes - written_before) /
         static_cast<double>((put_ - before) * value_bytes());
}

Result<void> BenchStore::put(const Goes& goes, const Stored& stored) {
  const size_t all_buffers = free_buffers_.size();
  while (outcome_ && goes()) {
    if (free_buffers_.size() < options_.lanes) {
      store_->wait();
      continue;
    }
    auto accepted = put_one(stored);
    if (accepted) continue;
    if (accepted.error().code == Code::kBusy)
      store_->wait();
    else
      keep(std::move(accepted));
  }
  while (free_buffers_.size() < all_buffers && store_->wait() > 0) continue;
  return outcome_;
}

Result<void> BenchStore::put_one(const Stored& stored) {
  flash::PutValue value{.key = bench_key(put_), .lanes = {}};
  const std::vector<size_t> buffers(free_buffers_.end() - options_.lanes, free_buffers_.end());
  for (const size_t index : buffers) value.lanes.push_back({buffer(index), options_.lane_bytes});
  std::vector<flash::PutValue> values;
  values.push_back(std::move(value));
  auto done = [this, buffers, stored, number = put_](Result<std::vector<flash::Handle>> handles) {
    free_buffers_.insert(free_buffers_.begin(), buffers.begin(), buffers.end());
    if (!handles)
      keep(std::unexpected(std::move(handles).error()));
    else if (stored)
      stored(number);
  };
  HIFC_TRY(store_->put({.lanes = options_.lanes, .chunk_bytes = options_.chunk_bytes},
                       std::move(values), std::move(done)));
  free_buffers_.resize(free_buffers_.size() - options_.lanes);
  ++put_;
  return {};
}

Result<void> BenchStore::find(uint64_t number, std::function<void(flash::Handle)> found) {
  bool done = false;
  HIFC_TRY(store_->pin(bench_key(number), [&](flash::Handle handle) {
    done = true;
    found(std::move(handle));
  }));
  while (!done) store_->wait();
  return {};
}

// ---- reading ----

std::vector<std::string> BenchStore::files() const {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory))
    if (entry.path().extension() == ".seg") files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

Result<void> BenchStore::pin() {
  for (uint64_t number = 0; number < put_; ++number) {
    if (!store_->contains(bench_key(number))) continue;
    HIFC_TRY(find(number, [this](flash::Handle handle) {
      if (handle) handles_.push_back(std::move(handle));
    }));
  }
  if (handles_.empty()) return failure(Code::kInternal, "nothing of what was put is stored");
  return {};
}

Result<BenchStore::Speed> BenchStore::read(double seconds) {
  return read(seconds, [this, next = uint64_t{0}]() mutable {
    const uint64_t lane = next++ % (handles_.size() * options_.lanes);
    return Target{.handle = &handles_[lane / options_.lanes],
                  .range = {.lane = static_cast<uint32_t>(lane % options_.lanes),
                            .offset_bytes = 0,
                            .size_bytes = options_.lane_bytes}};
  });
}

Result<BenchStore::Speed> BenchStore::read_chunks(double seconds) {
  return read(seconds, [this] {
    const uint64_t chunk = random_() % (options_.lane_bytes / options_.chunk_bytes);
    return Target{.handle = &handles_[random_() % handles_.size()],
                  .range = {.lane = static_cast<uint32_t>(random_() % options_.lanes),
                            .offset_bytes = chunk * options_.chunk_bytes,
                            .size_bytes = options_.chunk_bytes}};
  });
}

Result<BenchStore::Speed> BenchStore::read(double seconds, const Next& next) {
  const Goes in_time = until(seconds);
  const Goes goes = [&] { return outcome_ && in_time(); };
  const Measurement measurement;
  bytes_ = 0;
  uint64_t polled_at = 0;
  // To the end even after an error: completions refer to what is here.
  while (true) {
    start_reads(goes, next);
    if (!arrived_.empty()) {
      verify_one();
      if (bytes_ - polled_at < kVerifyBytes) continue;
      polled_at = bytes_;
      store_->poll();
    } else if (in_flight_ > 0) {
      store_->wait();
    } else {
      break;
    }
  }
  HIFC_TRY(outcome_);
  HIFC_TRY(check_interrupted());
  return measurement.of(bytes_);
}

// As many as the ring takes.
void BenchStore::start_reads(const Goes& goes, const Next& next) {
  while (in_flight_ < options_.depth && !free_buffers_.empty() && goes())
    keep(start_read(goes, next));
}

// The next read starts from the completion of the one before it: verifying comes later.
Result<void> BenchStore::start_read(const Goes& goes, const Next& next) {
  const Target target = next();
  const size_t index = free_buffers_.back();
  HIFC_TRY(store_->read(*target.handle, target.range, buffer(index),
                        [this, target, index, &goes, &next](Result<void> result) {
                          --in_flight_;
                          arrived_.push_back({.target = target, .buffer = index});
                          keep(std::move(result));
                          start_reads(goes, next);
                        }));
  free_buffers_.pop_back();
  ++in_flight_;
  return {};
}

void BenchStore::verify_one() {
  const Arrived arrived = arrived_.front();
  arrived_.pop_front();
  const auto bytes =
      std::span<const std::byte>(buffer(arrived.buffer), arrived.target.range.size_bytes);
  if (!store_->verify(*arrived.target.handle, arrived.target.range, bytes))
    keep(failure(Code::kCorrupt, "the flash directory gave back other bytes than were put"));
  bytes_ += bytes.size();
  free_buffers_.push_back(arrived.buffer);
}

void BenchStore::keep(Result<void> result) {
  if (!result && outcome_) outcome_ = std::move(result);
}

}  // namespace hifc::apps
