#include "kv/identity.h"

#include <bit>
#include <span>
#include <string_view>

namespace hifc::kv {
namespace {

constexpr std::string_view kDomain = "hifc/kv/identity";

// Every number is 8 bytes, little-endian, and every sequence follows its length, so that no two
// identities have one encoding.
class Encoder {
 public:
  void number(uint64_t value) { append(std::as_bytes(std::span(&value, 1))); }
  void real(double value) { number(std::bit_cast<uint64_t>(value)); }
  void sequence(std::span<const std::byte> bytes) {
    number(bytes.size());
    append(bytes);
  }
  void text(std::string_view value) { sequence(std::as_bytes(std::span(value))); }

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void append(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }

  std::vector<std::byte> bytes_;
};

void encode(Encoder& encoder, const ModelShape& shape) {
  encoder.number(shape.layers);
  encoder.number(shape.query_heads);
  encoder.number(shape.kv_heads);
  encoder.number(shape.head_dim);
  encoder.number(shape.window.size());
  for (const uint32_t window : shape.window) encoder.number(window);
}

void encode(Encoder& encoder, const Rope& rope) {
  encoder.sequence(rope.metadata);
  encoder.text(rope.scaling);
  encoder.real(rope.frequency_base);
  encoder.real(rope.frequency_scale);
}

void encode(Encoder& encoder, const CodecPolicy& codecs) {
  encoder.number(codecs.size());
  for (const LayerCodecs& layer : codecs) {
    encoder.number(static_cast<uint64_t>(layer.k));
    encoder.number(static_cast<uint64_t>(layer.v));
  }
}

}  // namespace

Fingerprint fingerprint(const Identity& identity) {
  Encoder encoder;
  encoder.number(kIdentityVersion);
  encoder.sequence(identity.content);
  encoder.text(identity.architecture);
  encode(encoder, identity.shape);
  encode(encoder, identity.rope);
  encoder.sequence(identity.lora);
  encoder.real(identity.lora_scale);
  encoder.text(identity.tenant);
  encode(encoder, identity.codecs);
  encoder.number(identity.layout_version);
  encoder.number(identity.numerics_revision);
  encoder.text(identity.arithmetic);
  encoder.number(identity.rank);
  encoder.number(identity.ranks);
  return keyed_digest(kDomain, encoder.bytes());
}

}  // namespace hifc::kv
