// Golden values made with Python's hashlib.blake2b (digest_size=32, key=b"hifc/kv/identity") over
// the encoding that identity.cpp describes, written independently with struct.pack.
#include "kv/identity.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kv/key_fixture.h"

namespace hifc::kv {
namespace {

Identity example() {
  return {.content = counting(),
          .architecture = "llama",
          .shape = {.layers = 4,
                    .query_heads = 8,
                    .kv_heads = 2,
                    .head_dim = 64,
                    .window = {128, 0, 128, 0}},
          .rope = {.metadata = {std::byte{1}, std::byte{2}, std::byte{3}},
                   .scaling = "yarn",
                   .frequency_base = 10000.0,
                   .frequency_scale = 0.25},
          .lora = counting(100),
          .lora_scale = 0.5,
          .tenant = "alice",
          .codecs = {{.k = Codec::kI8}, {.k = Codec::kI4, .v = Codec::kI3}},
          .arithmetic = "avx512",
          .rank = 1,
          .ranks = 2};
}

TEST(Fingerprint, EqualsTheGoldenValues) {
  EXPECT_EQ(hex(fingerprint({})),
            "76235da8c3c9f007287ea7dcfc2e26147953fac2f76f3b921e48a11bd64e9f0d");
  EXPECT_EQ(hex(fingerprint(example())),
            "a271a57d6795968bb3e6327609c3a86433d9d4722e01d02238e2a93f2b848373");
}

TEST(Fingerprint, DiffersWithEveryField) {
  using Change = std::function<void(Identity&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"content", [](Identity& i) { i.content[31] ^= std::byte{1}; }},
      {"architecture", [](Identity& i) { i.architecture = "qwen2"; }},
      {"layers", [](Identity& i) { ++i.shape.layers; }},
      {"query heads", [](Identity& i) { ++i.shape.query_heads; }},
      {"KV heads", [](Identity& i) { ++i.shape.kv_heads; }},
      {"head dimension", [](Identity& i) { i.shape.head_dim += 16; }},
      {"a window", [](Identity& i) { i.shape.window[1] = 128; }},
      {"a layer's window more", [](Identity& i) { i.shape.window.push_back(0); }},
      {"RoPE metadata", [](Identity& i) { i.rope.metadata[0] = std::byte{2}; }},
      {"RoPE scaling", [](Identity& i) { i.rope.scaling = "linear"; }},
      {"RoPE frequency base", [](Identity& i) { i.rope.frequency_base = 500000; }},
      {"RoPE frequency scale", [](Identity& i) { i.rope.frequency_scale = 0.5; }},
      {"LoRA", [](Identity& i) { i.lora[0] ^= std::byte{0x80}; }},
      {"no LoRA", [](Identity& i) { i.lora = {}; }},
      {"LoRA scale", [](Identity& i) { i.lora_scale = 1; }},
      {"tenant", [](Identity& i) { i.tenant = "bob"; }},
      {"no tenant", [](Identity& i) { i.tenant = ""; }},
      {"a codec of K", [](Identity& i) { i.codecs[1].k = Codec::kI8; }},
      {"a codec of V", [](Identity& i) { i.codecs[1].v = Codec::kI8; }},
      {"codecs", [](Identity& i) { i.codecs.pop_back(); }},
      {"layout version", [](Identity& i) { ++i.layout_version; }},
      {"numerics revision", [](Identity& i) { ++i.numerics_revision; }},
      {"arithmetic", [](Identity& i) { i.arithmetic = "avx2"; }},
      {"rank", [](Identity& i) { i.rank = 0; }},
      {"ranks", [](Identity& i) { i.ranks = 4; }},
  };
  std::set<std::string> seen = {hex(fingerprint(example()))};
  for (const auto& [name, change] : changes) {
    Identity other = example();
    change(other);
    EXPECT_TRUE(seen.insert(hex(fingerprint(other))).second) << name;
  }
}

// Texts that stand beside each other in the encoding, and a byte that moves between them.
TEST(Fingerprint, DiffersWhereNeighbouringFieldsShareTheirBytes) {
  std::set<std::string> seen;
  for (const auto& [architecture, tenant, arithmetic] :
       std::vector<std::array<std::string, 3>>{{"ab", "c", ""},
                                               {"a", "bc", ""},
                                               {"abc", "", ""},
                                               {"", "abc", ""},
                                               {"", "ab", "c"},
                                               {"a", "b", "c"},
                                               {"abc", std::string(1, '\0'), ""}}) {
    const Identity identity = {
        .architecture = architecture, .tenant = tenant, .arithmetic = arithmetic};
    EXPECT_TRUE(seen.insert(hex(fingerprint(identity))).second) << architecture << ',' << tenant;
  }
  Identity metadata, scaling;
  metadata.rope.metadata = {std::byte{'x'}};
  scaling.rope.scaling = "x";
  EXPECT_NE(fingerprint(metadata), fingerprint(scaling));
}

}  // namespace
}  // namespace hifc::kv
