#include "engine/device_record.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/records.h"
#include "testing/sim_clock.h"
#include "testing/sim_ring.h"
#include "testing/temp_directory.h"

namespace hifc::engine {
namespace {

constexpr tier::ProbeOptions kProbe = {
    .depth = 8, .budget_ns = 2'000'000, .scratch_bytes = 4u << 20};

// A store on a device that takes longer for every probe: which one is answered with shows.
class DeviceRecord : public ::testing::Test {
 protected:
  void SetUp() override {
    open();
    const auto profile = device_profile(*tiers_, flash(), clock_, kProbe);
    if (!profile && profile.error().code == Code::kUnsupported) GTEST_SKIP() << "no O_DIRECT here";
    ASSERT_TRUE(profile) << profile.error().message();
    first_ = *profile;
  }

  std::string flash() const { return directory_.file("kv"); }

  void open() {
    tiers_.reset();
    tiers_ = tier::Tiers::create(
                 {.block_bytes = 8192,
                  .blocks_per_group = 1,
                  .hot_bytes = 8192,
                  .flash = {{.directory = flash(), .capacity_bytes = 64u << 20, .clock = &clock_}}},
                 ring_)
                 .value();
  }

  tier::DeviceProfile again(tier::ProbeOptions options = kProbe) {
    read_ns_ *= 2;
    return device_profile(*tiers_, flash(), clock_, options).value();
  }

  testing::FaultPlan plan() {
    testing::FaultPlan plan;
    plan.choose = [this](const io::Request& request) {
      if (request.operation == io::Operation::kRead) clock_.advance_ns(read_ns_);
      return testing::Fault::kNone;
    };
    return plan;
  }

  testing::TempDirectory directory_;
  testing::SimClock clock_;
  uint64_t read_ns_ = 1000;
  testing::SimRing ring_{plan(), {.depth = 16, .disk = nullptr, .clock = &clock_}};
  std::unique_ptr<tier::Tiers> tiers_;
  tier::DeviceProfile first_;
};

TEST_F(DeviceRecord, IsMeasuredOnceForEachStoreAndDevice) {
  EXPECT_EQ(again(), first_);
  open();
  EXPECT_EQ(again(), first_);
}

TEST_F(DeviceRecord, IsMeasuredAgainWithMoreReadsInFlight) {
  const auto other = again({.depth = 16, .budget_ns = 2'000'000, .scratch_bytes = 4u << 20});
  EXPECT_EQ(other.depth, 16u);
  EXPECT_GT(other.fixed_s, first_.fixed_s);
  EXPECT_EQ(again({.depth = 16}), other);
}

TEST_F(DeviceRecord, IsMeasuredAgainWhereItIsDamaged) {
  auto record = tier::encode(first_);
  record[20] ^= std::byte{1};
  const kv::GroupKey key = device_record_key(flash()).value();
  ASSERT_TRUE(write_record(*tiers_, key, record));
  const auto second = again();
  EXPECT_GT(second.fixed_s, first_.fixed_s);
  EXPECT_EQ(again(), second);
}

TEST_F(DeviceRecord, OfNoDirectoryIsAnError) {
  EXPECT_EQ(device_record_key(directory_.file("absent")).error().code, Code::kIo);
}

}  // namespace
}  // namespace hifc::engine
