#include "apps/host_offload.h"

#include <gtest/gtest.h>

#include "testing/thread_parallel.h"

namespace hifc::apps {
namespace {

const kv::ModelShape kShape{
    .layers = 3, .query_heads = 4, .kv_heads = 2, .head_dim = 64, .window = {0, 0, 0}};
constexpr uint64_t kTokenBytes = 2 * 2 * 64 * sizeof(uint16_t);  // of a layer in F16
constexpr uint32_t kTokens = 4096;

std::unique_ptr<HostOffload> offload_of(const kv::CodecPolicy& codecs, Parallel& parallel) {
  const auto layout = kv::GroupLayout::make(kShape, 256, codecs);
  auto offload = HostOffload::create(layout.value(), kTokens, parallel);
  EXPECT_TRUE(offload);
  return std::move(*offload);
}

TEST(HostOffload, HoldsAllKvOnTheHostAndALayersOnTheDevice) {
  SerialParallel parallel;
  const auto exact = offload_of({}, parallel);
  EXPECT_EQ(exact->host_bytes(), 3 * kTokens * kTokenBytes);
  EXPECT_EQ(exact->device_bytes(), kTokens * kTokenBytes);
  // One layer in F16 and two in little more than half of that.
  const kv::LayerCodecs half{.k = kv::Codec::kI8, .v = kv::Codec::kI8};
  const auto mixed = offload_of({{}, half, half}, parallel);
  EXPECT_NEAR(static_cast<double>(mixed->host_bytes()), 2.0 * kTokens * kTokenBytes,
              0.1 * kTokens * kTokenBytes);
  EXPECT_EQ(mixed->device_bytes(), kTokens * kTokenBytes);
}

TEST(HostOffload, CopiesWhatALayersAttentionSees) {
  testing::ThreadParallel parallel(2);
  const auto offload = offload_of({}, parallel);
  uint64_t tokens = 0;
  for (const uint32_t seen : {1u, 512u, 513u, kTokens})
    for (uint32_t layer = 0; layer < kShape.layers; ++layer) {
      offload->attending(layer, seen);
      tokens += seen;
      EXPECT_EQ(offload->copied_bytes(), tokens * kTokenBytes);
    }
  EXPECT_GT(offload->copying_ns(), 0u);
  EXPECT_FALSE(offload->wants_weights());
}

}  // namespace
}  // namespace hifc::apps
