#include "apps/bench_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "apps/arguments.h"

namespace hifc::apps {
namespace {

// Several values of one key, in one word: --policy fp16,auto75.
void add_variants(CLI::App& command, std::string_view name, std::vector<std::string>& values) {
  const ConfigKey& key = *find_config_key(name);
  const CLI::callback_t parse = [&key, &values](const CLI::results_t& words) {
    values.clear();
    for (const std::string& word : words) {
      Config config;
      require(key.set(config, word, flag_name(key)));
      if (const std::string value = key.get(config);
          std::ranges::find(values, value) == values.end())
        values.push_back(value);
    }
    return true;
  };
  command.add_option(flag_name(key), parse, std::string(key.help))
      ->delimiter(',')
      ->expected(-1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name(std::string(key.value_hint) + ",...");
}

}  // namespace

std::shared_ptr<ModelBenchOptions> add_model_bench_options(CLI::App& command,
                                                           ModelBenchDefaults defaults) {
  auto options = std::make_shared<ModelBenchOptions>();
  options->contexts = std::move(defaults.contexts);
  options->rounds = defaults.rounds;
  options->hot_ratios = std::move(defaults.hot_ratios);
  constexpr uint32_t kMost = 1u << 24;
  command.add_option("-m,--model", options->model, "Model file (GGUF)")->required();
  command.add_option("-f,--file", options->files, "Texts to run over, one after the other")
      ->delimiter(',')
      ->type_name("TEXT,...")
      ->capture_default_str();
  add_numbers(command, "--context", options->contexts, between(defaults.context_min, kMost),
              "Context lengths in tokens");
  if (defaults.rounds > 0)
    add_number(command, "--rounds", options->rounds, between(1u, kMost),
               "Interleaved rounds; medians are shown");
  add_output_flags(command, options->output);
  add_numbers(command, "--hot-ratio", options->hot_ratios, between(0.0, 1.0),
              "Shares of the KV that stay hot")
      ->type_name("0..1,...");
  std::vector<std::string_view> without = {"hot_cache_ratio", "context"};
  if (defaults.variants == Variants::kSeveral) {
    add_variants(command, "policy", options->policies);
    add_variants(command, "attention", options->attentions);
    without.insert(without.end(), {"policy", "attention"});
  }
  options->config = std::make_unique<ConfigOptions>(command, without);
  return options;
}

Result<void> go_to(engine::Engine& engine, std::span<const int32_t> prefix) {
  const auto length = static_cast<uint32_t>(prefix.size());
  const uint32_t block = engine.budget().layout.block_tokens();
  engine.truncate(std::min(length, engine.length()) / block * block);
  HIFC_TRY(engine.prefill(prefix.subspan(engine.length())));
  return engine.flush();
}

std::string policy_label(const std::string& policy) {
  if (policy == "f16") return "fp16";
  const std::string file = policy.substr(policy.find_last_of('/') + 1);
  return file.substr(0, file.find_last_of('.'));
}

Result<void> ModelBench::prepare(uint64_t tokens_needed) {
  HIFC_ASSIGN(config, options.config->resolve());
  config.resume = false;  // every contender computes what it is measured on
  if (config.deterministic)
    return failure(Code::kInvalid,
                   "deterministic would slow down llama.cpp too, which shares the model: nothing "
                   "could be compared");
  for (const std::string& file : options.files) {
    HIFC_ASSIGN(const std::string one, read_text(file));
    text += one;
  }
  HIFC_ASSIGN(model, engine::Model::load(options.model));
  const uint32_t longest = *std::ranges::max_element(options.contexts);
  if (tokens_needed > model->context_tokens())
    return failure(Code::kInvalid,
                   fmt::format("--context {} with {} decoded tokens is more than the {} tokens "
                               "the model was trained for",
                               longest, tokens_needed - longest, model->context_tokens()));
  HIFC_ASSIGN(tokens, model->tokenize(text, false));
  if (tokens.empty()) return failure(Code::kInvalid, "the text has no tokens");
  for (size_t i = 0; tokens.size() < tokens_needed; ++i) tokens.push_back(tokens[i]);
  HIFC_ASSIGN(pool, engine::ThreadPool::create(config.threads));
  HIFC_ASSIGN(const engine::Budget budget, engine::plan_budget(config, *model));
  if (!budget.flash) return {};
  config.flash_path = budget.flash_path;
  HIFC_ASSIGN(scratch, ScratchDirectory::create(budget.flash_path));
  return {};
}

BenchReport::Json ModelBench::parameters() const {
  BenchReport::Json json = {
      {"model", model->description()}, {"files", options.files}, {"threads", pool->threads()}};
  if (options.rounds > 0) {
    json["rounds"] = options.rounds;
    json["tokens"] = options.tokens;
  }
  json["context"] = options.contexts;
  json["hot_ratio"] = options.hot_ratios;
  return json;
}

Result<std::unique_ptr<engine::Engine>> ModelBench::make_engine(const EngineSetup& setup) {
  if (!config.flash_path && setup.hot_ratio < 1)
    return failure(
        Code::kInvalid,
        fmt::format("--hot-ratio {} needs a flash tier: give --flash DIR", setup.hot_ratio));
  Config engine_config = config;
  engine_config.hot_cache_ratio = setup.hot_ratio;
  engine_config.hot_cache_size.reset();  // the ratio alone says what is hot
  engine_config.context = setup.context;
  const std::pair<const char*, std::string> given[] = {
      {"policy", setup.policy}, {"attention", setup.attention}, {"predictor", setup.predictor}};
  for (const auto& [key, value] : given)
    if (!value.empty()) HIFC_TRY(find_config_key(key)->set(engine_config, value));
  const bool temporary = setup.flash_path.empty();
  if (!setup.flash) {
    engine_config.flash_path.reset();
    engine_config.flash_cache_size = 0;
  } else if (config.flash_path) {
    engine_config.flash_path =
        temporary ? fmt::format("{}/engine{}", scratch.path(), engines++) : setup.flash_path;
  }
  return engine::Engine::create(*model, *pool,
                                {.config = engine_config,
                                 .temporary_flash = temporary,
                                 .expected_tokens = setup.context,
                                 .layer_observer = setup.layer_observer,
                                 .cancelled = &interrupted(),
                                 .trace = options.trace.trace()});
}

Result<std::unique_ptr<engine::Reference>> ModelBench::make_reference(engine::ReferenceMode mode,
                                                                      uint32_t context) {
  return engine::Reference::create(*model, *pool, {.mode = mode, .context_tokens = context});
}

}  // namespace hifc::apps
