// The simulated ring is the device: each read moves the clock on by a fixed time and one for its
// bytes, so that what a probe has to find is known exactly.
#include "tier/device_probe.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "testing/sim_clock.h"
#include "testing/sim_ring.h"
#include "testing/temp_directory.h"

namespace hifc::tier {
namespace {

using testing::Fault;
using testing::SimRing;

constexpr double kFixedNs = 9000, kNsPerByte = 0.5;
constexpr uint64_t kFileBytes = 4u << 20;

class DeviceProbe : public ::testing::Test {
 protected:
  DeviceProbe() {
    file_ = std::make_shared<io::File>(
        io::File::open(directory_.file("data"), {.mode = io::File::Mode::kCreate, .direct = false})
            .value());
    EXPECT_TRUE(file_->truncate(kFileBytes));
  }

  testing::FaultPlan plan(Fault fault = Fault::kNone) {
    testing::FaultPlan plan;
    plan.choose = [this, fault](const io::Request& request) {
      if (request.operation != io::Operation::kRead) return Fault::kNone;
      ++reads_;
      EXPECT_LE(request.offset_bytes + request.vectors.front().iov_len, kFileBytes);
      const auto bytes = static_cast<double>(request.vectors.front().iov_len);
      clock_.advance_ns(static_cast<uint64_t>(slowness_ * (kFixedNs + bytes * kNsPerByte)));
      return fault;
    };
    return plan;
  }

  std::unique_ptr<SimRing> ring(Fault fault = Fault::kNone) {
    return std::make_unique<SimRing>(
        plan(fault), testing::SimRingOptions{.depth = 16, .disk = nullptr, .clock = &clock_});
  }

  testing::TempDirectory directory_;
  testing::SimClock clock_;
  std::shared_ptr<io::File> file_;
  double slowness_ = 1;
  uint64_t reads_ = 0;
  ProbeOptions options_ = {.depth = 8, .budget_ns = 36'000'000, .scratch_bytes = kFileBytes};
};

TEST_F(DeviceProbe, FindsWhatADeviceTakesForAReadAndForItsBytes) {
  const auto device = ring();
  const auto profile = probe_file(file_, *device, clock_, options_);
  ASSERT_TRUE(profile) << profile.error().message();
  EXPECT_EQ(profile->depth, 8u);
  // A poll takes time too, which full queues share.
  EXPECT_NEAR(profile->fixed_s, 1e-9 * (kFixedNs + SimRing::kPollNs / 8.0), 2e-8);
  EXPECT_NEAR(profile->s_per_byte, 1e-9 * kNsPerByte, 1e-12);
  EXPECT_NEAR(profile->latency_s, 1e-9 * (kFixedNs + 4096 * kNsPerByte + SimRing::kPollNs), 2e-8);
}

TEST_F(DeviceProbe, KeepsToItsBudget) {
  const auto device = ring();
  ASSERT_TRUE(probe_file(file_, *device, clock_, options_));
  // In each slot the queue is full when the time is over.
  const double last_reads_ns = 3 * 8 * 5 * (kFixedNs + 1.4e6 / 5 * kNsPerByte);
  EXPECT_LT(static_cast<double>(clock_.now_ns()),
            static_cast<double>(options_.budget_ns) + last_reads_ns);
  EXPECT_GT(reads_, 1000u);
}

TEST_F(DeviceProbe, OfASlowDeviceEachSizeIsReadOnce) {
  slowness_ = 1000;
  const auto device = ring();
  const auto profile = probe_file(file_, *device, clock_, options_);
  ASSERT_TRUE(profile) << profile.error().message();
  EXPECT_EQ(reads_, 1 + 5 * 8u);
  EXPECT_NEAR(profile->s_per_byte, 1e-6 * kNsPerByte, 1e-9);
}

TEST_F(DeviceProbe, AnErrorOfTheDeviceIsTheProbes) {
  const auto device = ring(Fault::kIoError);
  const auto profile = probe_file(file_, *device, clock_, options_);
  ASSERT_FALSE(profile);
  EXPECT_EQ(profile.error().code, Code::kIo);
  EXPECT_EQ(device->in_flight(), 0u);
}

// Its memory and its file are the device's until it answers.
TEST_F(DeviceProbe, ADeviceThatDoesNotAnswerIsGivenUp) {
  const auto device = ring(Fault::kHang);
  const auto profile = probe_file(std::exchange(file_, nullptr), *device, clock_, options_);
  ASSERT_FALSE(profile);
  EXPECT_EQ(profile.error().code, Code::kTimeout);
  EXPECT_GE(clock_.now_ns(), options_.deadline_ns);
  EXPECT_GT(device->hung(), 0u);
  device->release_hung();
  while (device->in_flight() > 0) device->poll();
}

TEST_F(DeviceProbe, RefusesMoreReadsThanTheRingTakesAndTooLittleToRead) {
  const auto device = ring();
  options_.depth = 17;
  EXPECT_EQ(probe_file(file_, *device, clock_, options_).error().code, Code::kInvalid);
  options_ = {.depth = 8, .scratch_bytes = 4096};
  EXPECT_EQ(probe_file(file_, *device, clock_, options_).error().code, Code::kInvalid);
}

TEST_F(DeviceProbe, OfADirectoryLeavesNothingInIt) {
  const testing::TempDirectory flash;
  const auto device = ring();
  const auto profile = probe_device(flash.path(), *device, clock_, options_);
  if (!profile && profile.error().code == Code::kUnsupported) GTEST_SKIP() << "no O_DIRECT here";
  ASSERT_TRUE(profile) << profile.error().message();
  EXPECT_NEAR(profile->s_per_byte, 1e-9 * kNsPerByte, 1e-12);
  EXPECT_EQ(device->statistics().written_bytes, kFileBytes);
  EXPECT_TRUE(std::filesystem::is_empty(flash.path()));
}

TEST_F(DeviceProbe, WithoutRoomNothingIsWritten) {
  const testing::TempDirectory flash;
  const auto device = ring();
  options_.free_space_floor_bytes = uint64_t{1} << 60;
  const auto profile = probe_device(flash.path(), *device, clock_, options_);
  ASSERT_FALSE(profile);
  EXPECT_EQ(profile.error().code, Code::kFull);
  EXPECT_EQ(device->statistics().writes, 0u);
}

}  // namespace
}  // namespace hifc::tier
