// Golden values: stored blocks must stay findable by every later process (made with Python's
// hashlib.blake2b, digest_size=32, and for tails and records person=b"hifc/kv/tail" and
// b"hifc/kv/record").
#include "kv/key.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "kv/key_fixture.h"

namespace hifc::kv {
namespace {

TEST(GroupKey, EqualsTheGoldenValues) {
  const GroupKey root = root_key(counting(), 256);
  EXPECT_EQ(hex(root), "2f2cbf8201e250d85a58b6070dad3d300bac0f4e221e0f5fa90376b7acd8d1ec");
  const GroupKey first = next_key(root, std::vector<int32_t>{1, 2, 3, -4});
  EXPECT_EQ(hex(first), "350b6dbdfc8b0259a8d9e13d25ab8b9ff36d0c512b3c6bb9c0aeac1fa45bbeec");
  const GroupKey second = next_key(first, std::vector<int32_t>{5, 6, 7, 49151});
  EXPECT_EQ(hex(second), "a25334293ac3e7bfc6d62d076548455969008f6420987ab82f9ff87f8b1a4c1a");
  const GroupKey tail = tail_key(root, std::vector<int32_t>{1, 2, 3});
  EXPECT_EQ(hex(tail), "928c92c6889b00363b915a65509f8039864c1e0761bf208bd919e5631925e451");
  EXPECT_EQ(hex(tail_key(root, {})),
            "22e068e49b62378aacc963a572b653e416f471069f697271424aa430028127c7");
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Digest, EqualsTheGoldenValues) {
  EXPECT_EQ(hex(digest(bytes_of("hifc"))),
            "ace6561dc6d0e090971e36e192b217efa2667c1a5a45609fbe19a86ac526e65a");
  EXPECT_EQ(hex(keyed_digest("domain", bytes_of("hifc"))),
            "e9d850bdc286d5f781d1ca3c73dfe02a6a14136c4ccd91d16e781311afd0705d");
  EXPECT_EQ(hex(record_key("file-digest", bytes_of("name"))),
            "a60447efeebfa3dc1374ec94efa8a1b28ef36684eabce68dc8352d31448bc8cf");
}

// The tests of golden values again, each time in a new process.
TEST(Keys, EqualTheGoldenValuesInThreeProcesses) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command = "'" + program + "' --gtest_filter='*EqualsTheGoldenValues'";
  for (int process = 0; process < 3; ++process) {
    std::FILE* const output = popen(command.c_str(), "r");
    ASSERT_NE(output, nullptr);
    std::string text(1 << 16, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), output));
    EXPECT_EQ(pclose(output), 0) << text;
    EXPECT_NE(text.find("[  PASSED  ] 3 tests"), std::string::npos) << text;
  }
}

TEST(Digest, DoesNotDependOnThePieces) {
  std::string text(1000, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7);
  for (const size_t piece : {1u, 63u, 128u, 129u, 1000u}) {
    DigestStream stream;
    for (size_t at = 0; at < text.size(); at += piece)
      stream.update(bytes_of(text).subspan(at, std::min(piece, text.size() - at)));
    EXPECT_EQ(stream.finish(), digest(bytes_of(text))) << piece;
  }
  EXPECT_EQ(DigestStream().finish(), digest({}));
}

TEST(Digest, RecordsOfOtherDomainsAndOtherFunctionsHaveOtherKeys) {
  const std::string name(32, 'n');
  const std::set<GroupKey> keys = {record_key("a", bytes_of(name)),
                                   record_key("b", bytes_of(name)),
                                   record_key("an", bytes_of(name.substr(1))),
                                   record_key(std::string("a\0", 2), bytes_of(name)),
                                   record_key(name, bytes_of(name)),
                                   keyed_digest("a", bytes_of(name)),
                                   digest(bytes_of(name))};
  EXPECT_EQ(keys.size(), 7u);
}

TEST(GroupKey, OfATailIsNeverThatOfAFullGroup) {
  const GroupKey root = root_key(counting(), 64);
  std::set<GroupKey> keys = {root};
  std::vector<int32_t> tokens;
  for (int32_t token = 0; token < 64; ++token) {
    EXPECT_TRUE(keys.insert(tail_key(root, tokens)).second) << token;
    EXPECT_TRUE(keys.insert(next_key(root, tokens)).second) << token;
    tokens.push_back(token);
  }
  EXPECT_NE(tail_key(root, tokens), tail_key(next_key(root, {}), tokens));
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
