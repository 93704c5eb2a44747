// hifc run: generate text with the KV cache in three tiers.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <memory>

#include "apps/arguments.h"
#include "apps/command.h"
#include "apps/options.h"
#include "apps/progress.h"
#include "apps/report.h"
#include "apps/trace_file.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "engine/engine.h"
#include "engine/sampler.h"

namespace hifc::apps {
namespace {

constexpr TraceKind kTraceSample{.track = "engine", .category = "compute", .name = "sample"};

struct RunOptions {
  std::string model;
  std::string prompt;
  std::string file;
  int32_t tokens = 128;
  bool raw = false;
  bool quiet = false;
  bool ignore_end = false;
  std::string report;
  TraceFile trace;
  engine::SamplerOptions sampler;
  std::unique_ptr<ConfigOptions> config;
};

class Run {
 public:
  explicit Run(RunOptions& options) : options_(options) {}

  Result<int> operator()() {
    HIFC_TRY(prepare());
    auto status = work();
    const auto traced = options_.trace.write(fmt::format("hifc run -m {}", options_.model));
    if (status && !traced) return std::unexpected(traced.error());
    if (!traced) log_warn("{}", traced.error().message());
    return status;
  }

 private:
  Result<int> work() {
    auto outcome = generate();
    if (!outcome && outcome.error().code != Code::kCancelled)
      return std::unexpected(std::move(outcome).error());
    const bool printed = std::fputc('\n', stdout) != EOF && std::fflush(stdout) == 0;
    if (outcome && !printed) return std::unexpected(output_failure());
    HIFC_TRY(finish());
    return outcome ? kExitOk : kExitInterrupted;
  }

  Result<void> prepare() {
    HIFC_ASSIGN(const Config config, options_.config->resolve());
    run_.policy = config.policy;
    HIFC_ASSIGN(engine::Sampler sampler, engine::Sampler::create(options_.sampler));
    sampler_ = std::make_unique<engine::Sampler>(std::move(sampler));
    HIFC_ASSIGN(std::string text, prompt_text());
    if (text.empty()) return failure(Code::kInvalid, "the prompt is empty");
    HIFC_TRY(check_report_path());
    HIFC_TRY(options_.trace.start());
    HIFC_ASSIGN(model_, engine::Model::load(options_.model, engine::rounding_of(config)));
    run_.model_rss_bytes = resident_memory().now_bytes;
    HIFC_TRY(tokenize(std::move(text)));
    HIFC_ASSIGN(const engine::Budget budget, engine::plan_budget(config, *model_));
    HIFC_TRY(limit_tokens(budget));
    HIFC_TRY(engine::check_fits(budget, tokens_.size() + new_tokens_));
    HIFC_ASSIGN(pool_, engine::ThreadPool::create(config.threads));
    HIFC_ASSIGN(engine_, engine::Engine::create(*model_, *pool_,
                                                {.config = config,
                                                 .expected_tokens = tokens_.size(),
                                                 .cancelled = &interrupted(),
                                                 .trace = options_.trace.trace()}));
    return {};
  }

  Result<std::string> prompt_text() const {
    const bool from_flag = !options_.prompt.empty(), from_file = !options_.file.empty();
    if (from_flag) return options_.prompt;
    if (!from_file && isatty(STDIN_FILENO) != 0)
      return failure(Code::kInvalid, "no prompt: give -p TEXT, -f FILE or text on standard input");
    return read_text(from_file ? options_.file : "-");
  }

  // Before the work, without touching an earlier report or leaving an empty one.
  Result<void> check_report_path() const {
    if (options_.report.empty()) return {};
    const bool there = ::access(options_.report.c_str(), F_OK) == 0;
    errno = 0;
    if (std::FILE* file = std::fopen(options_.report.c_str(), "a"); file != nullptr) {
      std::fclose(file);
      if (!there) ::unlink(options_.report.c_str());
      return {};
    }
    return failure(Code::kIo, fmt::format("'{}' cannot be written", options_.report), errno);
  }

  Result<void> tokenize(std::string text) {
    const bool chat = !options_.raw && model_->has_chat_template();
    if (chat) {
      HIFC_ASSIGN(text, model_->apply_chat_template(text));
    } else if (!options_.raw) {
      log_warn("the model has no chat template: the prompt is used as plain text");
    }
    HIFC_ASSIGN(tokens_, model_->tokenize(text, /*parse_special=*/chat));
    if (tokens_.empty()) return failure(Code::kInvalid, "the prompt has no tokens");
    run_.prompt_tokens = static_cast<uint32_t>(tokens_.size());
    return {};
  }

  Result<void> limit_tokens(const engine::Budget& budget) {
    const uint64_t context = budget.context_tokens;
    if (tokens_.size() >= context)
      return failure(Code::kInvalid,
                     fmt::format("the prompt has {}, but the context holds {} with the answer",
                                 plural(tokens_.size(), "token"), context));
    const uint64_t room = context - tokens_.size();
    new_tokens_ =
        options_.tokens < 0 ? static_cast<uint32_t>(room) : static_cast<uint32_t>(options_.tokens);
    if (new_tokens_ > room) {
      log_warn("-n {} is cut to {}: the context of {} tokens holds no more after the prompt",
               new_tokens_, room, context);
      new_tokens_ = static_cast<uint32_t>(room);
    }
    return {};
  }

  Result<void> generate() {
    start_ns_ = clock_.now_ns();
    HIFC_TRY(prefill());
    int32_t token = sample();
    run_.ttft_ms = milliseconds(clock_.now_ns() - start_ns_);
    const uint64_t stalled_ns = engine_->cache_statistics().stall_ns;
    for (;;) {
      HIFC_ASSIGN(const bool goes_on, accept(token));
      if (!goes_on || run_.generated_tokens >= new_tokens_) break;
      const uint64_t token_ns = clock_.now_ns();
      HIFC_TRY(engine_->step({&token, 1}, engine::Outputs::kLast, cache::StepKind::kGeneration));
      token = sample();
      run_.token_ms.push_back(milliseconds(clock_.now_ns() - token_ns));
      run_.decode_stall_ms = milliseconds(engine_->cache_statistics().stall_ns - stalled_ns);
    }
    return {};
  }

  Result<void> prefill() {
    const uint32_t stored = engine_->resume(tokens_);
    Progress progress({.label = "prefill",
                       .total = tokens_.size(),
                       .first = stored,
                       .style = Progress::style(options_.quiet)});
    auto outcome = engine_->prefill(std::span(tokens_).subspan(stored),
                                    [&](uint32_t done) { progress.update(stored + done); });
    progress.finish();
    run_.prefill_ms = milliseconds(clock_.now_ns() - start_ns_);
    const uint32_t reused = engine_->resume_report().reused_tokens;
    run_.computed_tokens = engine_->length() - std::min(engine_->length(), reused);
    return outcome;
  }

  int32_t sample() {
    const TraceScope scope(options_.trace.trace(), kTraceSample);
    return sampler_->sample(engine_->logits());
  }

  // Prints the token; false when it ends the text.
  Result<bool> accept(int32_t token) {
    if (!options_.ignore_end && model_->ends_generation(token)) return false;
    ++run_.generated_tokens;
    const std::string piece = model_->piece(token);
    run_.text += piece;
    const bool written = std::fwrite(piece.data(), 1, piece.size(), stdout) == piece.size();
    if (!written || std::fflush(stdout) != 0) return std::unexpected(output_failure());
    return true;
  }

  static Error output_failure() {
    return {.code = Code::kIo,
            .system_errno = errno,
            .context = "the text cannot be written to standard output"};
  }

  Result<void> finish() {
    if (auto saved = engine_->save(); !saved)
      log_warn("not all KV reached flash: {}", saved.error().message());
    if (!options_.quiet) fmt::print(stderr, "{}", run_table(*engine_, run_));
    if (options_.report.empty()) return {};
    // Generated bytes may end inside a UTF-8 sequence.
    const std::string json =
        run_report(*engine_, run_)
            .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    return write_text(options_.report, json + "\n");
  }

  RunOptions& options_;
  SystemClock clock_;
  std::unique_ptr<engine::Sampler> sampler_;
  std::unique_ptr<engine::Model> model_;
  std::unique_ptr<engine::ThreadPool> pool_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<int32_t> tokens_;
  uint32_t new_tokens_ = 0;
  uint64_t start_ns_ = 0;
  RunMeasurements run_;
};

Accepted<int32_t> token_counts() {
  return {.test = [](int32_t count) { return count > 0 || count == -1; },
          .text = fmt::format("a whole number from 1 to {}, or -1 for no limit",
                              std::numeric_limits<int32_t>::max())};
}

void add_sampler_options(CLI::App& run, engine::SamplerOptions& sampler) {
  const Accepted<float> mass = {.test = [](float share) { return share > 0 && share <= 1; },
                                .text = "a number above 0 and up to 1"};
  add_number(run, "--temp", sampler.temperature, at_least(0.0f),
             "Temperature; 0: always the likeliest");
  add_number(run, "--top-k", sampler.top_k, between(0, std::numeric_limits<int32_t>::max()),
             "Sample from the K likeliest; 0: off");
  add_number(run, "--top-p", sampler.top_p, mass, "Sample from this share of mass; 1: off");
  add_number(run, "--min-p", sampler.min_p, between(0.0f, 1.0f),
             "Drop tokens below this share of the likeliest; 0: off");
  add_number(run, "--seed", sampler.seed, between(0u, std::numeric_limits<uint32_t>::max()),
             "Seed of the sampling");
}

}  // namespace

void add_run_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* run = app.add_subcommand("run", "Generate text with the KV cache in three tiers");
  run->add_option("-m,--model", options->model, "Model file (GGUF)")->required();
  const auto* prompt =
      run->add_option("-p,--prompt", options->prompt, "Prompt; else -f, else standard input");
  const auto* file = run->add_option("-f,--file", options->file, "File with the prompt");
  add_number(*run, "-n,--tokens", options->tokens, token_counts(),
             "Tokens to generate; -1: until the text ends");
  run->add_flag("--raw", options->raw, "Plain text: no chat template");
  run->add_flag("--ignore-end", options->ignore_end, "Go on after the model ends its text");
  run->add_flag("-q,--quiet", options->quiet, "No progress bar and no table");
  run->add_option("--report", options->report, "Write the run's figures to FILE as JSON")
      ->type_name("FILE")
      ->check([](const std::string& path) {
        return path.empty() ? "\"\" is not the name of a file" : std::string();
      });
  options->trace.add_option(*run);
  add_sampler_options(*run, options->sampler);
  options->config = std::make_unique<ConfigOptions>(*run);
  run->footer(
      "Example: a 16 MiB + 16 MiB cache over flash\n"
      "  hifc run -m model.gguf -f long.txt --raw -n 64 --hot 16MiB --warm 16MiB --flash /data/kv");
  run->callback([=, &chosen] {
    if (prompt->count() > 0 && file->count() > 0)
      throw UsageError("-p and -f are both given, but there is one prompt");
    chosen = [options] { return Run(*options)(); };
  });
}

}  // namespace hifc::apps
