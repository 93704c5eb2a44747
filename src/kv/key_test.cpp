// Golden values: stored blocks must stay findable by every later process (made with Python's
// hashlib.blake2b, digest_size=32).
#include "kv/key.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace hifc::kv {
namespace {

std::string hex(const std::array<std::byte, 32>& bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

Fingerprint counting() {
  Fingerprint fingerprint;
  for (size_t i = 0; i < fingerprint.size(); ++i) fingerprint[i] = static_cast<std::byte>(i);
  return fingerprint;
}

TEST(GroupKey, EqualsTheGoldenValues) {
  const GroupKey root = root_key(counting(), 256);
  EXPECT_EQ(hex(root), "95e6c65946bf0083ca3b4cd91665b094cf491835829f73cc28ac1552bd29f8c8");
  const GroupKey first = next_key(root, std::vector<int32_t>{1, 2, 3, -4});
  EXPECT_EQ(hex(first), "59d48923eb666131688003b4f4c8466086dd02040c14b2ba948a573a67fbcfb1");
  const GroupKey second = next_key(first, std::vector<int32_t>{5, 6, 7, 49151});
  EXPECT_EQ(hex(second), "53fdfff6f5cb3c9f8bb0150fcc63170aa16238e123beb162c4bea0684ee95aeb");
}

TEST(GroupKey, DigestEqualsTheGoldenValue) {
  const std::string text = "hifc";
  EXPECT_EQ(hex(digest(std::as_bytes(std::span(text)))),
            "ace6561dc6d0e090971e36e192b217efa2667c1a5a45609fbe19a86ac526e65a");
}

TEST(GroupKey, DiffersWithEveryByteOfTheFingerprintAndWithBlockTokens) {
  std::set<std::string> keys = {hex(root_key(counting(), 256))};
  for (size_t i = 0; i < 32; ++i) {
    Fingerprint other = counting();
    other[i] ^= std::byte{1};
    EXPECT_TRUE(keys.insert(hex(root_key(other, 256))).second) << i;
  }
  for (const uint32_t block_tokens : {64u, 128u, 512u, 4096u})
    EXPECT_TRUE(keys.insert(hex(root_key(counting(), block_tokens))).second) << block_tokens;
}

TEST(GroupKey, DiffersWithAnyTokenOfThePrefix) {
  constexpr size_t kGroup = 64, kGroups = 3;
  const auto chain = [](const std::vector<int32_t>& tokens) {
    GroupKey key = root_key(counting(), kGroup);
    for (size_t g = 0; g < kGroups; ++g)
      key = next_key(key, std::span(tokens).subspan(g * kGroup, kGroup));
    return hex(key);
  };
  std::vector<int32_t> tokens(kGroup * kGroups);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
  std::set<std::string> keys = {chain(tokens)};
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::vector<int32_t> other = tokens;
    other[i] += 1 << 24;  // the highest byte of a token counts too
    EXPECT_TRUE(keys.insert(chain(other)).second) << i;
  }
  std::swap(tokens[0], tokens[1]);
  EXPECT_TRUE(keys.insert(chain(tokens)).second);
}

}  // namespace
}  // namespace hifc::kv
