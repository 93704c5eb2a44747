#include "apps/arguments.h"

#include <algorithm>
#include <iterator>

namespace hifc::apps {
namespace {

// Whether `argument` gives the option of this name: "--tokens", "--tokens=3", "-n" or "-n3".
bool gives(std::string_view argument, std::string_view name) {
  if (!argument.starts_with(name)) return false;
  const std::string_view rest = argument.substr(name.size());
  return rest.empty() || rest.front() == '=' || !name.starts_with("--");
}

std::vector<std::string_view> split(std::string_view names) {
  std::vector<std::string_view> parts;
  for (size_t comma = names.find(','); comma != std::string_view::npos; comma = names.find(',')) {
    parts.push_back(names.substr(0, comma));
    names.remove_prefix(comma + 1);
  }
  parts.push_back(names);
  return parts;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::unexpected<Error> unknown_command(const CLI::App& app, std::string_view word) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  const std::string_view nearest = nearest_name(word, candidates);
  const std::string meant =
      nearest.empty() ? std::string() : fmt::format(" (did you mean {}?)", nearest);
  return failure(Code::kInvalid,
                 fmt::format("{} is not a command of {}; accepted are {}{}", quote(word),
                             app.get_name(), fmt::join(names, ", "), meant));
}

}  // namespace

void require(const Result<void>& checked) {
  if (!checked) throw UsageError(checked.error().message());
}

BadValue::BadValue(std::string names, std::string_view value, std::string_view accepted)
    : UsageError(
          fmt::format("{}: {} is not accepted; accepted is {}", names, quote(value), accepted)),
      names_(std::move(names)),
      problem_(std::string(what()).substr(names_.size())) {}

std::string BadValue::sentence(std::span<const std::string> arguments) const {
  const std::vector<std::string_view> names = split(names_);
  std::string_view typed = names.back();
  for (const std::string& argument : arguments)
    for (const std::string_view name : names)
      if (gives(argument, name)) typed = name;
  return std::string(typed) + problem_;
}

Result<void> check_commands(const CLI::App& app, std::span<const std::string> arguments) {
  const std::vector<const CLI::App*> commands = commands_of(app);
  if (commands.empty() || arguments.empty() || arguments.front().starts_with("-")) return {};
  const auto chosen = std::ranges::find_if(
      commands, [&](const CLI::App* command) { return command->get_name() == arguments.front(); });
  if (chosen == commands.end()) return unknown_command(app, arguments.front());
  return check_commands(**chosen, arguments.subspan(1));
}

}  // namespace hifc::apps
