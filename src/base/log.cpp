#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>

#include "base/text.h"

namespace hifc {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarn: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::err;
}

std::unique_ptr<spdlog::logger> make_logger() {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto logger = std::make_unique<spdlog::logger>("hifc", std::move(sink));
  logger->set_pattern("hifc: %v");
  logger->set_level(spdlog::level::warn);
  logger->flush_on(spdlog::level::debug);

  const char* variable = std::getenv("HIFC_LOG");
  const std::string_view wanted = variable == nullptr ? "" : variable;
  if (wanted == "debug") {
    logger->set_level(spdlog::level::debug);
  } else if (wanted == "info") {
    logger->set_level(spdlog::level::info);
  } else if (wanted == "error") {
    logger->set_level(spdlog::level::err);
  } else if (!wanted.empty() && wanted != "warn") {
    logger->warn("HIFC_LOG: {} is not a level; accepted are debug, info, warn and error",
                 quote(wanted));
  }
  return logger;
}

// Never destroyed, so that destructors of static objects may still log.
spdlog::logger& logger() {
  static spdlog::logger* const instance = make_logger().release();
  return *instance;
}

}  // namespace

bool log_enabled(LogLevel level) {
  return logger().should_log(spdlog_level(level));
}

void log_message(LogLevel level, std::string_view message) {
  logger().log(spdlog_level(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace hifc
