// The YAML side of config.h; the only place with yaml-cpp.
#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/text.h"

namespace hifc {
namespace {

constexpr std::string_view kRootKey = "hifc_config";
// A configuration is a few lines; a larger file is a mistake (a model, /dev/zero), not worth
// reading.
constexpr size_t kFileBytesMax = 1 << 20;

// "FILE line 3", or "FILE" where yaml-cpp knows no position.
std::string place(std::string_view source, const YAML::Mark& mark) {
  if (mark.is_null()) return std::string(source);
  return fmt::format("{} line {}", source, mark.line + 1);
}

std::unexpected<Error> refuse(const std::string& where, std::string_view what) {
  return failure(Code::kInvalid, fmt::format("{}: {}", where, what));
}

std::string key_list() {
  std::vector<std::string_view> names;
  for (const ConfigKey& key : config_keys()) names.push_back(key.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::unexpected<Error> unknown_key(const std::string& where, std::string_view word) {
  std::vector<std::string_view> names;
  for (const ConfigKey& key : config_keys()) names.push_back(key.name);
  const std::string_view nearest = nearest_name(word, names);
  if (!nearest.empty()) {
    return refuse(where, fmt::format("{} is not a key of {}; did you mean {}?", quote(word),
                                     kRootKey, nearest));
  }
  return refuse(where, fmt::format("{} is not a key of {}; accepted are {}", quote(word), kRootKey,
                                   key_list()));
}

Result<Setting> to_setting(const YAML::Node& name, const YAML::Node& value,
                           std::string_view source) {
  const std::string where = place(source, name.Mark());
  if (!name.IsScalar())
    return refuse(where, fmt::format("a key of {} must be a plain word", kRootKey));
  const ConfigKey* const key = find_config_key(name.Scalar());
  if (key == nullptr) return unknown_key(where, name.Scalar());
  if (!value.IsScalar()) {
    const std::string_view found = value.IsNull() ? "nothing" : value.IsMap() ? "a map" : "a list";
    return refuse(where, fmt::format("{}: {} is not accepted; accepted is one value of the form {}",
                                     key->name, found, key->value_hint));
  }
  return Setting{key, value.Scalar(), fmt::format("{}: {}", where, key->name)};
}

// Remembers where the last document began; its content is of no interest.
class DocumentStart final : public YAML::EventHandler {
 public:
  YAML::Mark mark;

  void OnDocumentStart(const YAML::Mark& start) override { mark = start; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

std::unexpected<Error> wrong_shape(std::string_view source, const YAML::Mark& mark,
                                   std::string_view found) {
  return refuse(
      place(source, mark),
      fmt::format("{}; accepted is one document with {}: and its keys below it", found, kRootKey));
}

// YAML::Load ignores further documents, and YAML::LoadAll never returns from text such as ",".
Result<void> refuse_second_document(const std::string& yaml, std::string_view source) {
  std::istringstream stream(yaml);
  YAML::Parser parser(stream);
  DocumentStart start;
  if (parser.HandleNextDocument(start) && parser.HandleNextDocument(start))
    return wrong_shape(source, start.mark, "a second document begins");
  return {};
}

// The map under hifc_config.
Result<YAML::Node> find_root(const YAML::Node& document, std::string_view source) {
  if (document.IsNull()) return wrong_shape(source, YAML::Mark::null_mark(), "holds nothing");
  if (!document.IsMap()) return wrong_shape(source, document.Mark(), "the document is not a map");
  YAML::Node root;
  bool found = false;
  for (const auto& entry : document) {
    const YAML::Node &name = entry.first, &value = entry.second;
    const std::string word = name.IsScalar() ? name.Scalar() : "";
    if (word != kRootKey) return wrong_shape(source, name.Mark(), quote(word) + " is not accepted");
    if (found) return wrong_shape(source, name.Mark(), fmt::format("{} is given twice", kRootKey));
    if (!value.IsMap() && !value.IsNull())
      return wrong_shape(source, value.Mark(), fmt::format("{} is not a map", kRootKey));
    root.reset(value);
    found = true;
  }
  return root;
}

Result<Config> apply_yaml(const std::string& yaml, std::string_view source, Config base) {
  const YAML::Node document = YAML::Load(yaml);
  HIFC_TRY(refuse_second_document(yaml, source));
  HIFC_ASSIGN(const YAML::Node root, find_root(document, source));
  std::vector<Setting> settings;
  for (const auto& entry : root) {
    HIFC_ASSIGN(Setting setting, to_setting(entry.first, entry.second, source));
    settings.push_back(std::move(setting));
  }
  return apply_settings(std::move(base), settings);
}

Result<std::string> read_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  const auto refused = [&] {
    return failure(Code::kIo, fmt::format("cannot read the configuration file {}", quote(path)),
                   errno);
  };
  if (file == nullptr) return refused();
  std::string text(kFileBytesMax + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return refused();
  if (text.size() > kFileBytesMax) {
    return failure(Code::kInvalid,
                   fmt::format("{} has more than {} bytes; accepted is a YAML file with {}:",
                               quote(path), kFileBytesMax, kRootKey));
  }
  return text;
}

}  // namespace

Result<Config> parse_config(std::string_view yaml, std::string_view source, Config base) {
  // yaml-cpp ends the document at a NUL and would leave the rest unread.
  if (yaml.find('\0') != std::string_view::npos)
    return refuse(std::string(source), "contains a zero byte; accepted is YAML text");
  try {
    return apply_yaml(std::string(yaml), source, std::move(base));
  } catch (const YAML::Exception& error) {
    return refuse(place(source, error.mark), fmt::format("not valid YAML ({})", error.msg));
  } catch (const std::exception& error) {
    return refuse(std::string(source), fmt::format("cannot be read as YAML ({})", error.what()));
  }
}

Result<Config> load_config_file(const std::string& path, Config base) {
  HIFC_ASSIGN(const std::string text, read_file(path));
  return parse_config(text, path, std::move(base));
}

}  // namespace hifc
