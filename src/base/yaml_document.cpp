#include "base/yaml_document.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <sstream>

#include "base/text.h"

namespace hifc::yaml {
namespace {

// Files of ours are short; a larger one is a mistake (a model, /dev/zero), not worth reading.
constexpr size_t kFileBytesMax = 1 << 20;

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

// Finds the map under the root key of one text.
class RootFinder {
 public:
  RootFinder(std::string_view source, const Kind& kind) : source_(source), kind_(kind) {}

  Result<Root> find(const std::string& text) const {
    const YAML::Node document = YAML::Load(text);
    HIFC_TRY(refuse_second_document(text));
    if (document.IsNull()) return wrong_shape(YAML::Mark::null_mark(), "holds nothing");
    if (!document.IsMap()) return wrong_shape(document.Mark(), "the document is not a map");
    return find_in(document);
  }

 private:
  std::unexpected<Error> wrong_shape(const YAML::Mark& mark, std::string_view found) const {
    return refuse(place(source_, mark),
                  fmt::format("{}; accepted is one document with {}: and its keys below it", found,
                              kind_.root_key));
  }

  // YAML::Load ignores further documents, and YAML::LoadAll never returns from text such as ",".
  Result<void> refuse_second_document(const std::string& text) const {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    DocumentStart start;
    if (parser.HandleNextDocument(start) && parser.HandleNextDocument(start))
      return wrong_shape(start.mark, "a second document begins");
    return {};
  }

  std::unexpected<Error> wrong_root(const YAML::Node& name) const {
    const std::string word = name.IsScalar() ? name.Scalar() : "";
    if (word == kConfiguration.root_key)
      return wrong_shape(name.Mark(), fmt::format("{} makes this a {}, which belongs to --config",
                                                  word, kConfiguration.name));
    return wrong_shape(name.Mark(), quote(word) + " is not accepted");
  }

  Result<Root> find_in(const YAML::Node& document) const {
    Root root;
    bool found = false;
    for (const auto& entry : document) {
      const YAML::Node &name = entry.first, &value = entry.second;
      if (!name.IsScalar() || name.Scalar() != kind_.root_key) return wrong_root(name);
      if (found) return wrong_shape(name.Mark(), fmt::format("{} is given twice", kind_.root_key));
      if (!value.IsMap() && !value.IsNull())
        return wrong_shape(value.Mark(), fmt::format("{} is not a map", kind_.root_key));
      root.name.reset(name);
      root.value.reset(value);
      found = true;
    }
    return root;
  }

  std::string_view source_;
  const Kind& kind_;
};

}  // namespace

Result<Root> load(std::string_view text, std::string_view source, const Kind& kind) {
  // yaml-cpp ends the document at a NUL and would leave the rest unread.
  if (text.find('\0') != std::string_view::npos)
    return refuse(source, "contains a zero byte; accepted is YAML text");
  try {
    return RootFinder(source, kind).find(std::string(text));
  } catch (const YAML::Exception& error) {
    return refuse(place(source, error.mark), fmt::format("not valid YAML ({})", error.msg));
  } catch (const std::exception& error) {
    return refuse(source, fmt::format("cannot be read as YAML ({})", error.what()));
  }
}

Result<std::string> read_file(const std::string& path, const Kind& kind) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  const auto refused = [&] {
    return failure(Code::kIo, fmt::format("cannot read the {} {}", kind.name, quote(path)), errno);
  };
  if (file == nullptr) return refused();
  std::string text(kFileBytesMax + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return refused();
  if (text.size() > kFileBytesMax) {
    return failure(Code::kInvalid,
                   fmt::format("{} has more than {} bytes; accepted is a YAML file with {}:",
                               quote(path), kFileBytesMax, kind.root_key));
  }
  return text;
}

std::string place(std::string_view source, const YAML::Mark& mark) {
  if (mark.is_null()) return std::string(source);
  return fmt::format("{} line {}", source, mark.line + 1);
}

std::string describe(const YAML::Node& node) {
  if (node.IsScalar()) return quote(node.Scalar());
  return node.IsMap() ? "a map" : node.IsSequence() ? "a list" : "nothing";
}

std::unexpected<Error> refuse(std::string_view where, std::string_view what) {
  return failure(Code::kInvalid, fmt::format("{}: {}", where, what));
}

std::unexpected<Error> unknown_key(std::string_view where, std::string_view word,
                                   const Keys& keys) {
  const std::string_view nearest = nearest_name(word, keys.names);
  if (!nearest.empty()) {
    return refuse(where, fmt::format("{} is not a key of {}; did you mean {}?", quote(word),
                                     keys.owner, nearest));
  }
  return refuse(where, fmt::format("{} is not a key of {}; accepted are {}", quote(word),
                                   keys.owner, fmt::join(keys.names, ", ")));
}

}  // namespace hifc::yaml
