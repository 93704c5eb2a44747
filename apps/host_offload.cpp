#include "apps/host_offload.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace hifc::apps {
namespace {

// Of one task: many enough for all threads, each long enough to be worth starting.
constexpr uint64_t kPartBytes = 256u << 10;

}  // namespace

Result<std::unique_ptr<HostOffload>> HostOffload::create(const kv::GroupLayout& layout,
                                                         uint32_t tokens, Parallel& parallel) {
  std::unique_ptr<HostOffload> offload(new HostOffload(layout, tokens, parallel));
  HIFC_TRY(offload->allocate());
  return offload;
}

HostOffload::HostOffload(const kv::GroupLayout& layout, uint32_t tokens, Parallel& parallel)
    : tokens_max_(tokens), parallel_(parallel) {
  for (const kv::BlockLayout& sealed : layout.sealed) token_bytes_.push_back(sealed.token_bytes());
}

Result<void> HostOffload::allocate() {
  uint64_t all = 0, largest = 0;
  for (uint32_t layer = 0; layer < token_bytes_.size(); ++layer) {
    offsets_.push_back(all);
    all += bytes_of(layer, tokens_max_);
    largest = std::max(largest, bytes_of(layer, tokens_max_));
  }
  HIFC_ASSIGN(host_, io::AlignedMemory::allocate(all));
  HIFC_ASSIGN(device_, io::AlignedMemory::allocate(largest));
  // Reading memory that was never written reads one page of zeros again and again.
  for (const auto memory : {host_.span(), device_.span()})
    std::memset(memory.data(), 1, memory.size());
  return {};
}

uint64_t HostOffload::bytes_of(uint32_t layer, uint32_t tokens) const {
  return static_cast<uint64_t>(std::ceil(token_bytes_[layer] * tokens));
}

void HostOffload::attending(uint32_t layer, uint32_t tokens) {
  HIFC_CHECK(tokens <= tokens_max_);
  const uint64_t start_ns = clock_.now_ns();
  const uint64_t bytes = bytes_of(layer, tokens);
  const auto parts = static_cast<uint32_t>((bytes + kPartBytes - 1) / kPartBytes);
  parallel_.run(parts, [&](uint32_t part, uint32_t) {
    const uint64_t begin = part * kPartBytes;
    std::memcpy(device_.data() + begin, host_.data() + offsets_[layer] + begin,
                std::min(kPartBytes, bytes - begin));
  });
  copied_bytes_ += bytes;
  copying_ns_ += clock_.now_ns() - start_ns;
}

}  // namespace hifc::apps
