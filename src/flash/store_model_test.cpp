// Goal: whatever is done in whatever order on a device with faults, the store never gives back
// wrong bytes, never loses a value without saying so, and never takes more room than it may.
// Method: random steps against a model in memory, all drawn from one seed, which failures print.
#include <gtest/gtest.h>

#include <map>

#include "flash/store_fixture.h"
#include "testing/sim_ring.h"

namespace hifc::flash {
namespace {

constexpr uint64_t kKeys = 120;
constexpr ValueShape kShapes[] = {
    {.lanes = 1, .lane_bytes = 4096, .chunk_bytes = 4096},
    {.lanes = 3, .lane_bytes = 12288, .chunk_bytes = 8192},
    {.lanes = 2, .lane_bytes = 32768, .chunk_bytes = 65536},
};

class ModelRun {
 public:
  explicit ModelRun(uint64_t seed)
      : random_(seed), ring_({.seed = seed}, 1 + static_cast<uint32_t>(draw(12))), h_(ring_) {
    h_.open((64u << 10) + draw(2u << 20) / 4096 * 4096, (8u << 10) + draw(512u << 10));
    ring_.set_plan(noisy(seed));
  }
  ~ModelRun() {
    pins_.clear();
    h_.store.reset();
  }

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      step();
      h_.check_bytes();
      expect_losses_to_be_counted();
    }
    h_.wait_all();
    expect_losses_to_be_counted();
    EXPECT_EQ(puts_finished_, puts_accepted_);
    EXPECT_EQ(reads_finished_, reads_accepted_);
    EXPECT_GT(reads_verified_, 0u);
  }

 private:
  struct Stored {
    uint64_t version = 0;
    size_t shape = 0;
  };
  struct Pin {
    Handle handle;
    uint64_t id;
    Stored stored;
  };

  static testing::FaultPlan noisy(uint64_t seed) {
    return {.seed = seed,
            .read_error = 0.03,
            .write_error = 0.03,
            .no_space = 0.02,
            .short_read = 0.03,
            .bit_flip = 0.03,
            .delay_polls_max = 4};
  }

  uint64_t draw(uint64_t bound) { return random_() % bound; }

  void step() {
    switch (draw(10)) {
      case 0:
      case 1:
      case 2: return put();
      case 3:
      case 4:
      case 5: return read(draw(kKeys));
      case 6: return quarantine(draw(kKeys));
      case 7: return pin(draw(kKeys));
      case 8: return unpin();
      default: ring_.poll();
    }
  }

  void put() {
    const size_t shape = draw(std::size(kShapes));
    std::vector<uint64_t> ids;
    for (uint64_t i = 0, count = 1 + draw(6); i < count; ++i) ids.push_back(draw(kKeys));
    const uint64_t version = ++last_version_;
    auto batch = std::make_shared<TestBatch>(kShapes[shape], ids, version);
    const auto accepted =
        h_.store->put(kShapes[shape], batch->values,
                      [this, batch, version, shape](Result<std::vector<Handle>> handles) {
                        ++puts_finished_;
                        if (!handles) return;
                        EXPECT_EQ(handles->size(), batch->ids.size());
                        for (const uint64_t id : batch->ids) model_[id] = {version, shape};
                      });
    if (accepted)
      ++puts_accepted_;
    else
      EXPECT_TRUE(accepted.error().code == Code::kFull || accepted.error().code == Code::kBusy)
          << accepted.error().message();
  }

  void read(uint64_t id) {
    const Handle handle = h_.store->find(key_of(id));
    if (!handle) return;
    ASSERT_TRUE(model_.contains(id)) << "found what was never put";
    start_read(handle, id, model_[id]);
  }

  void start_read(const Handle& handle, uint64_t id, Stored stored) {
    const ValueShape& shape = kShapes[stored.shape];
    const auto lane = static_cast<uint32_t>(draw(shape.lanes));
    auto memory =
        std::make_shared<io::AlignedMemory>(*io::AlignedMemory::allocate(shape.lane_bytes));
    const LaneRead run{&handle, memory->data()};
    const auto accepted = h_.store->read(
        lane, {&run, 1}, [this, handle, id, stored, lane, memory](Result<void> result) {
          ++reads_finished_;
          if (!result || !h_.store->verify(handle, lane, memory->span())) return;
          std::vector<std::byte> expected(memory->size_bytes());
          fill_lane(id, stored.version, lane, expected);
          EXPECT_EQ(std::memcmp(memory->data(), expected.data(), expected.size()), 0);
          ++reads_verified_;
        });
    if (accepted)
      ++reads_accepted_;
    else
      EXPECT_EQ(accepted.error().code, Code::kBusy);
  }

  void quarantine(uint64_t id) {
    const Handle handle = h_.store->find(key_of(id));
    if (!handle) return;
    h_.store->quarantine(handle);
    EXPECT_FALSE(h_.store->find(key_of(id)));
    model_.erase(id);
  }

  void pin(uint64_t id) {
    if (Handle handle = h_.store->find(key_of(id))) pins_.push_back({handle, id, model_[id]});
  }

  // A pinned value reads the same to the end, however much was put since.
  void unpin() {
    if (pins_.empty()) return;
    const size_t index = draw(pins_.size());
    start_read(pins_[index].handle, pins_[index].id, pins_[index].stored);
    pins_.erase(pins_.begin() + static_cast<ptrdiff_t>(index));
  }

  void expect_losses_to_be_counted() {
    const uint64_t before = model_.size();
    std::erase_if(model_, [&](const auto& entry) { return !h_.store->find(key_of(entry.first)); });
    EXPECT_EQ(h_.store->statistics().values, model_.size());
    losses_ += before - model_.size();
    // A put may have replaced a key after its older value was retired in the same step.
    EXPECT_LE(losses_, h_.store->statistics().retired_values);
  }

  std::mt19937_64 random_;
  testing::SimRing ring_;
  StoreHarness h_;
  std::map<uint64_t, Stored> model_;  // what must be findable, unless it was retired
  std::vector<Pin> pins_;
  uint64_t last_version_ = 0;
  uint64_t losses_ = 0;
  uint64_t puts_accepted_ = 0, puts_finished_ = 0;
  uint64_t reads_accepted_ = 0, reads_finished_ = 0, reads_verified_ = 0;
};

class StoreModelTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(StoreModelTest, RandomStepsAgreeWithTheModel) {
  SCOPED_TRACE(fmt::format("seed {}", GetParam()));
  ModelRun(GetParam()).run(2000);
}

INSTANTIATE_TEST_SUITE_P(Seeds, StoreModelTest, ::testing::Range<uint64_t>(1, 9));

// A new seed every time; a failure prints it, and it then joins the list above.
TEST(StoreModelFreshTest, RandomStepsAgreeWithTheModel) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  ModelRun(seed).run(2000);
}

}  // namespace
}  // namespace hifc::flash
