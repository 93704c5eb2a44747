// Feeds check_header() headers that are nearly right.
//
// Strategy: an input is the header that is expected, and a difference to it at one place of the
// page.
// Invariant: only the expected header passes, whatever stands behind it, and what does not has a
// reason.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "kv/layout.h"

namespace {

void expect(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace hifc::kv;
  FuzzedDataProvider data(bytes, size);
  BlockHeader expected;
  expected.tokens = {.first_position = data.ConsumeIntegral<uint32_t>(),
                     .token_count = data.ConsumeIntegral<uint16_t>(),
                     .flags = data.ConsumeIntegral<uint16_t>()};
  expected.layer = data.ConsumeIntegral<uint32_t>();
  expected.kv_heads = data.ConsumeIntegral<uint16_t>();
  expected.head_dim = data.ConsumeIntegral<uint32_t>();
  expected.block_tokens = data.ConsumeIntegral<uint32_t>();

  std::vector<std::byte> block(kHeaderBytes);
  write_header(expected, block);
  expect(check_header(expected, block).has_value());
  const size_t at = data.ConsumeIntegralInRange<size_t>(0, sizeof expected + 8);
  const auto difference = data.ConsumeRemainingBytes<std::byte>();
  for (size_t i = 0; i < difference.size() && at + i < block.size(); ++i)
    block[at + i] ^= difference[i];

  const auto outcome = check_header(expected, block);
  expect(outcome.has_value() == (std::memcmp(block.data(), &expected, sizeof expected) == 0));
  if (!outcome) expect(outcome.error().code == hifc::Code::kCorrupt);
  if (!outcome) expect(!outcome.error().context.empty());
  return 0;
}
