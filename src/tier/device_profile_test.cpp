#include "tier/device_profile.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace hifc::tier {
namespace {

constexpr DeviceProfile kExample{
    .fixed_s = 9e-6, .s_per_byte = 4.5e-10, .latency_s = 80e-6, .depth = 16};

std::vector<ReadSample> samples_of(const DeviceProfile& profile) {
  std::vector<ReadSample> samples;
  for (uint64_t bytes = 4096; bytes <= 1u << 20; bytes *= 4)
    samples.push_back({.bytes = bytes, .seconds = profile.read_seconds(bytes)});
  return samples;
}

TEST(FitReads, FindsTheLineThatTheSamplesLieOn) {
  const auto costs = fit_reads(samples_of(kExample));
  ASSERT_TRUE(costs);
  EXPECT_NEAR(costs->fixed_s, kExample.fixed_s, 1e-12);
  EXPECT_NEAR(costs->s_per_byte, kExample.s_per_byte, 1e-16);
}

// By seconds the largest read alone would decide: 1 % of 1 MiB's time is half of a page's.
TEST(FitReads, SmallReadsCountAsMuchAsLargeOnes) {
  auto samples = samples_of(kExample);
  samples.back().seconds *= 1.05;
  const auto costs = fit_reads(samples);
  ASSERT_TRUE(costs);
  for (const ReadSample& sample : samples) {
    const double fitted = costs->fixed_s + static_cast<double>(sample.bytes) * costs->s_per_byte;
    EXPECT_NEAR(fitted / sample.seconds, 1, 0.05) << sample.bytes;
  }
}

TEST(FitReads, NoPartIsNegative) {
  // Faster than in proportion to the bytes when small, and slower when large.
  const auto steep = fit_reads(std::vector<ReadSample>{{4096, 1e-6}, {8192, 4e-6}});
  ASSERT_TRUE(steep);
  EXPECT_EQ(steep->fixed_s, 0);
  EXPECT_GT(steep->s_per_byte, 0);
  const auto falling = fit_reads(std::vector<ReadSample>{{4096, 4e-6}, {8192, 3e-6}});
  ASSERT_TRUE(falling);
  EXPECT_GT(falling->fixed_s, 0);
  EXPECT_EQ(falling->s_per_byte, 0);
}

TEST(FitReads, RefusesWhatDeterminesNoLine) {
  EXPECT_FALSE(fit_reads({}));
  EXPECT_FALSE(fit_reads(std::vector<ReadSample>{{4096, 1e-6}}));
  EXPECT_FALSE(fit_reads(std::vector<ReadSample>{{4096, 1e-6}, {4096, 2e-6}}));
  EXPECT_FALSE(fit_reads(std::vector<ReadSample>{{4096, 1e-6}, {8192, 0}}));
  EXPECT_FALSE(fit_reads(std::vector<ReadSample>{{4096, 1e-6}, {0, 1e-6}}));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(fit_reads(std::vector<ReadSample>{{4096, 1e-6}, {8192, nan}}));
}

TEST(DeviceProfile, ReadSecondsAndWhereAGapIsWorthReadingThrough) {
  EXPECT_DOUBLE_EQ(kExample.read_seconds(0), 9e-6);
  EXPECT_DOUBLE_EQ(kExample.read_seconds(20'000), 18e-6);
  EXPECT_NEAR(kExample.break_even_bytes(), 20'000, 1e-6);
  EXPECT_EQ(DeviceProfile{.fixed_s = 1}.break_even_bytes(), 0);
}

TEST(DeviceRecord, DecodesToWhatWasEncoded) {
  EXPECT_EQ(decode_device_profile(encode(kExample)), kExample);
}

TEST(DeviceRecord, EveryFlippedBitIsRefused) {
  auto record = encode(kExample);
  for (size_t bit = 0; bit < 8 * record.size(); ++bit) {
    record[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(decode_device_profile(record)) << bit;
    record[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(DeviceRecord, OtherLengthsAreRefused) {
  const auto record = encode(kExample);
  for (const size_t size : {size_t{0}, size_t{47}, record.size() - 1})
    EXPECT_FALSE(decode_device_profile(std::span(record).first(size)));
}

TEST(DeviceRecord, WhatCannotHaveBeenMeasuredIsRefused) {
  const auto refused = [](auto change) {
    DeviceProfile profile = kExample;
    change(profile);
    return !decode_device_profile(encode(profile));
  };
  EXPECT_TRUE(refused([](DeviceProfile& profile) { profile.fixed_s = -1e-6; }));
  EXPECT_TRUE(refused([](DeviceProfile& profile) { profile.latency_s = -1; }));
  EXPECT_TRUE(refused([](DeviceProfile& profile) { profile.depth = 0; }));
  EXPECT_TRUE(refused([](DeviceProfile& profile) { profile.fixed_s = profile.s_per_byte = 0; }));
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(refused([&](DeviceProfile& profile) { profile.s_per_byte = infinite; }));
}

}  // namespace
}  // namespace hifc::tier
