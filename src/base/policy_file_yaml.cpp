// The YAML side of policy_file.h: reading and printing.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/policy_file.h"
#include "base/text.h"
#include "base/yaml_document.h"

namespace hifc {
namespace {

constexpr std::string_view kVersion = "1";
// Far above any model; a larger number is a mistake, and bounds what a file makes us allocate.
constexpr uint32_t kLayersMost = 4096;
constexpr uint32_t kKvHeadsMost = 4096;
// The heads that the codecs can encode.
constexpr uint32_t kHeadDimStep = 16;
constexpr uint32_t kHeadDimMost = 512;
constexpr size_t kArchitectureBytesMost = 64;

// A map of the file: what failures call it, and the keys it has, all of them.
template <size_t kCount>
struct MapForm {
  std::string_view name;
  std::array<std::string_view, kCount> keys;
};
constexpr MapForm<3> kPolicyForm = {"hifc_policy", {"version", "model", "layers"}};
constexpr MapForm<5> kModelForm = {
    "model", {"architecture", "parameters", "layers", "kv_heads", "head_dim"}};
constexpr MapForm<3> kEntryForm = {"an entry of layers", {"layers", "k", "v"}};

// A value and what failures call it.
struct Field {
  std::string where;  // "FILE line 3"; empty for a key that has not been found yet
  std::string_view name;
  YAML::Node value;
};

std::unexpected<Error> refuse(const Field& field, std::string_view what) {
  return yaml::refuse(field.where, fmt::format("{}: {}", field.name, what));
}

std::unexpected<Error> not_accepted(const Field& field, std::string_view accepted) {
  return refuse(field, fmt::format("{} is not accepted; accepted is {}",
                                   yaml::describe(field.value), accepted));
}

// The values of a map in the order of the form's keys.
template <size_t kCount>
Result<std::array<Field, kCount>> read_map(const Field& map, const MapForm<kCount>& form,
                                           std::string_view source) {
  const std::string accepted = fmt::format("a map with {}", fmt::join(form.keys, ", "));
  if (!map.value.IsMap()) return not_accepted(map, accepted);
  std::array<Field, kCount> fields;
  for (const auto& entry : map.value) {
    const YAML::Node &name = entry.first, &value = entry.second;
    const std::string where = yaml::place(source, name.Mark());
    if (!name.IsScalar())
      return yaml::refuse(where, fmt::format("a key of {} must be a plain word", form.name));
    const auto key = std::ranges::find(form.keys, name.Scalar());
    if (key == form.keys.end())
      return yaml::unknown_key(where, name.Scalar(), {form.name, form.keys});
    Field& field = fields[key - form.keys.begin()];
    if (!field.where.empty()) {
      return yaml::refuse(
          where,
          fmt::format("{} is given twice, first in {}; accepted is one value", *key, field.where));
    }
    field.where = where;
    field.name = *key;
    field.value.reset(value);
  }
  const auto missing = std::ranges::find(fields, "", &Field::where);
  if (missing != fields.end()) {
    return yaml::refuse(map.where, fmt::format("{} has no {}; accepted is {}", form.name,
                                               form.keys[missing - fields.begin()], accepted));
  }
  return fields;
}

template <typename T>
Result<T> read_number(const Field& field, T most) {
  const auto number =
      field.value.IsScalar() ? to_number<T>(field.value.Scalar()) : std::optional<T>();
  if (!number || *number < 1 || *number > most)
    return not_accepted(field, fmt::format("a whole number from 1 to {}", most));
  return *number;
}

Result<uint32_t> read_head_dim(const Field& field) {
  const auto number = read_number(field, kHeadDimMost);
  if (!number || *number % kHeadDimStep != 0)
    return not_accepted(field,
                        fmt::format("a multiple of {} up to {}", kHeadDimStep, kHeadDimMost));
  return *number;
}

// Comes before everything else: what another version has is not for this one to judge.
Result<void> check_version(const Field& policy, std::string_view source) {
  for (const auto& entry : policy.value) {
    if (!entry.first.IsScalar() || entry.first.Scalar() != "version") continue;
    const Field version = {yaml::place(source, entry.first.Mark()), "version", entry.second};
    const bool known = version.value.IsScalar() && version.value.Scalar() == kVersion;
    if (!known) return not_accepted(version, kVersion);
  }
  return {};
}

Result<std::string> read_architecture(const Field& field) {
  const auto is_accepted = [](char c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return letter || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  };
  const std::string word = field.value.IsScalar() ? field.value.Scalar() : "";
  const bool accepted = !word.empty() && word.size() <= kArchitectureBytesMost &&
                        std::ranges::all_of(word, is_accepted);
  if (!accepted) {
    return not_accepted(field, fmt::format("a word of at most {} letters, digits, '-', '_' and "
                                           "'.', such as llama",
                                           kArchitectureBytesMost));
  }
  return word;
}

Result<PolicyModel> read_model(const Field& map, std::string_view source) {
  HIFC_ASSIGN(const auto fields, read_map(map, kModelForm, source));
  const auto& [architecture, parameters, layers, kv_heads, head_dim] = fields;
  PolicyModel model;
  HIFC_ASSIGN(model.architecture, read_architecture(architecture));
  HIFC_ASSIGN(model.parameters, read_number(parameters, std::numeric_limits<uint64_t>::max()));
  HIFC_ASSIGN(model.layers, read_number(layers, kLayersMost));
  HIFC_ASSIGN(model.kv_heads, read_number(kv_heads, kKvHeadsMost));
  HIFC_ASSIGN(model.head_dim, read_head_dim(head_dim));
  return model;
}

struct LayerRange {
  uint32_t first = 0;
  uint32_t last = 0;
};

// "3", or "0-2".
std::string print_range(const LayerRange& range) {
  if (range.first == range.last) return fmt::to_string(range.first);
  return fmt::format("{}-{}", range.first, range.last);
}

Result<LayerRange> read_range(const Field& field, uint32_t layer_count) {
  const std::string text = field.value.IsScalar() ? field.value.Scalar() : "";
  const size_t dash = text.find('-');
  const auto first = to_number<uint32_t>(std::string_view(text).substr(0, dash));
  const auto last = dash == std::string::npos
                        ? first
                        : to_number<uint32_t>(std::string_view(text).substr(dash + 1));
  const LayerRange all = {.first = 0, .last = layer_count - 1};
  if (!first || !last) {
    return not_accepted(field, fmt::format("a layer or a range of layers within {}, such as 3 or "
                                           "0-2",
                                           print_range(all)));
  }
  if (*first > *last) {
    return refuse(field, fmt::format("{} is reversed; accepted is the lower layer first, as in {}",
                                     quote(text), print_range({*last, *first})));
  }
  if (*last > all.last) {
    return refuse(field, fmt::format("{} goes past the last layer of the model; accepted are "
                                     "layers within {}",
                                     quote(text), print_range(all)));
  }
  return LayerRange{*first, *last};
}

// Collects the layers from the entries of the list.
class LayerReader {
 public:
  LayerReader(std::string_view source, std::span<const std::string_view> codecs,
              uint32_t layer_count)
      : source_(source), codecs_(codecs), layers_(layer_count), given_at_(layer_count) {}

  Result<std::vector<PolicyLayer>> read(const Field& list) {
    if (!list.value.IsSequence())
      return not_accepted(list, "a list of maps such as {layers: 0-2, k: i8, v: i4}");
    for (const YAML::Node& entry : list.value)
      HIFC_TRY(read_entry({yaml::place(source_, entry.Mark()), kEntryForm.name, entry}));
    HIFC_TRY(check_complete(list));
    return std::move(layers_);
  }

 private:
  uint32_t layer_count() const { return static_cast<uint32_t>(layers_.size()); }

  Result<void> read_entry(const Field& entry) {
    HIFC_ASSIGN(const auto fields, read_map(entry, kEntryForm, source_));
    const auto& [layers, k, v] = fields;
    HIFC_ASSIGN(const LayerRange range, read_range(layers, layer_count()));
    PolicyLayer layer;
    HIFC_ASSIGN(layer.k, read_codec(k));
    HIFC_ASSIGN(layer.v, read_codec(v));
    for (uint32_t i = range.first; i <= range.last; ++i) {
      if (!given_at_[i].empty()) {
        return refuse(layers,
                      fmt::format("layer {} is given twice, first in {}; accepted is every layer "
                                  "once",
                                  i, given_at_[i]));
      }
      given_at_[i] = layers.where;
      layers_[i] = layer;
    }
    return {};
  }

  Result<std::string> read_codec(const Field& field) const {
    const bool exists =
        field.value.IsScalar() && std::ranges::find(codecs_, field.value.Scalar()) != codecs_.end();
    if (!exists) {
      return refuse(field, fmt::format("{} is not a codec; accepted are {}",
                                       yaml::describe(field.value), fmt::join(codecs_, ", ")));
    }
    return field.value.Scalar();
  }

  Result<void> check_complete(const Field& list) const {
    const auto missing = std::ranges::find(given_at_, "");
    if (missing == given_at_.end()) return {};
    const auto given = std::ranges::find_if(
        missing, given_at_.end(), [](const std::string& where) { return !where.empty(); });
    const auto first = static_cast<uint32_t>(missing - given_at_.begin());
    const auto last = static_cast<uint32_t>(given - given_at_.begin()) - 1;
    const std::string named = first == last ? fmt::format("layer {} is", first)
                                            : fmt::format("layers {}-{} are", first, last);
    return refuse(list, fmt::format("{} not given; accepted is every layer within {} once", named,
                                    print_range({.first = 0, .last = layer_count() - 1})));
  }

  std::string_view source_;
  std::span<const std::string_view> codecs_;
  std::vector<PolicyLayer> layers_;
  std::vector<std::string> given_at_;  // [layer] "FILE line 3"; empty: not yet
};

Result<PolicyFile> read_policy(const Field& policy, std::string_view source,
                               std::span<const std::string_view> codecs) {
  HIFC_TRY(check_version(policy, source));
  HIFC_ASSIGN(const auto fields, read_map(policy, kPolicyForm, source));
  const auto& [version, model, layers] = fields;
  PolicyFile file;
  HIFC_ASSIGN(file.model, read_model(model, source));
  HIFC_ASSIGN(file.layers, LayerReader(source, codecs, file.model.layers).read(layers));
  return file;
}

// A comment must not end before its line does, so control characters become spaces.
std::string print_comment(std::string_view comment) {
  std::string result;
  while (!comment.empty()) {
    const std::string_view line = comment.substr(0, comment.find('\n'));
    comment.remove_prefix(std::min(line.size() + 1, comment.size()));
    result += line.empty() ? "#" : "# ";
    for (const char c : line) result += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? ' ' : c;
    result += '\n';
  }
  return result;
}

void print_model(YAML::Emitter& out, const PolicyModel& model) {
  out << YAML::BeginMap;
  out << YAML::Key << "architecture" << YAML::Value << model.architecture;
  out << YAML::Key << "parameters" << YAML::Value << model.parameters;
  out << YAML::Key << "layers" << YAML::Value << model.layers;
  out << YAML::Key << "kv_heads" << YAML::Value << model.kv_heads;
  out << YAML::Key << "head_dim" << YAML::Value << model.head_dim;
  out << YAML::EndMap;
}

void print_layers(YAML::Emitter& out, std::span<const PolicyLayer> layers) {
  out << YAML::BeginSeq;
  for (size_t begin = 0, end = 0; begin < layers.size(); begin = end) {
    const PolicyLayer& layer = layers[begin];
    while (end < layers.size() && layers[end] == layer) ++end;
    const LayerRange range = {.first = static_cast<uint32_t>(begin),
                              .last = static_cast<uint32_t>(end - 1)};
    out << YAML::Flow << YAML::BeginMap;
    out << YAML::Key << "layers" << YAML::Value << print_range(range);
    out << YAML::Key << "k" << YAML::Value << layer.k;
    out << YAML::Key << "v" << YAML::Value << layer.v;
    out << YAML::EndMap;
  }
  out << YAML::EndSeq;
}

}  // namespace

Result<PolicyFile> parse_policy_file(std::string_view yaml, std::string_view source,
                                     std::span<const std::string_view> codecs) {
  HIFC_ASSIGN(const yaml::Root root, yaml::load(yaml, source, yaml::kPolicy));
  const std::string where = yaml::place(source, root.name.Mark());
  return read_policy({where, kPolicyForm.name, root.value}, source, codecs);
}

Result<PolicyFile> read_policy_file(const std::string& path,
                                    std::span<const std::string_view> codecs) {
  HIFC_ASSIGN(const std::string text, yaml::read_file(path, yaml::kPolicy));
  return parse_policy_file(text, path, codecs);
}

std::string print_policy_file(const PolicyFile& file, std::string_view comment) {
  HIFC_CHECK(file.layers.size() == file.model.layers);
  // The emitter quotes words that YAML would read as something else, such as null.
  YAML::Emitter out;
  out << YAML::BeginMap << YAML::Key << std::string(kPolicyForm.name) << YAML::Value;
  out << YAML::BeginMap << YAML::Key << "version" << YAML::Value << std::string(kVersion);
  out << YAML::Key << "model" << YAML::Value;
  print_model(out, file.model);
  out << YAML::Key << "layers" << YAML::Value;
  print_layers(out, file.layers);
  out << YAML::EndMap << YAML::EndMap;
  HIFC_CHECK(out.good());
  return print_comment(comment) + out.c_str() + '\n';
}

}  // namespace hifc
