// hifc bench retrieval: whether sparse attention still finds single facts in a long text.
//
// Ten facts stand at ten depths of a text, and each is asked for behind it. The log-probability of
// the right answer under sparse attention is held against that under exact attention, and this
// against what the answer has where the text is without facts: only what exact attention finds can
// be lost. Question and answer are computed token by token, as sparse attention generates.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>

#include "apps/arguments.h"
#include "apps/bench_model.h"
#include "apps/log_probability.h"
#include "apps/retrieval_facts.h"
#include "base/log.h"

namespace hifc::apps {
namespace {

using Bound = BenchReport::Bound;
using Json = BenchReport::Json;

// Exact attention has found a fact that makes its answer e times as probable, or more.
constexpr double kFoundNats = 1.0;
constexpr double kDropNatsMax = 0.05;
// So short that the last fact is before the newest pages, which sparse attention never leaves out.
constexpr uint32_t kContextMin = 3072;
// Of a question with its answer; 25 to 40 with most tokenizers.
constexpr uint32_t kQuestionTokensMax = 128;
constexpr double kHotRatio = 0.25;  // where there is a flash tier

// Log-probabilities of the whole answer to one question, in nats.
struct Outcome {
  double without = 0, exact = 0, sparse = 0;

  double drop() const { return exact - sparse; }
  bool found() const { return exact - without >= kFoundNats; }
};

struct Question {
  std::vector<int32_t> tokens;
  size_t answer = 0;  // where it begins
  Outcome outcome = {};
};

using QuestionSet = std::vector<Question>;  // [fact]

double mean_of(std::span<const Outcome> outcomes, double Outcome::* value) {
  double sum = 0;
  for (const Outcome& outcome : outcomes) sum += outcome.*value;
  return sum / static_cast<double>(outcomes.size());
}

// Of the facts that exact attention has found.
std::vector<double> drops_of(std::span<const Outcome> outcomes) {
  std::vector<double> drops;
  for (const Outcome& outcome : outcomes)
    if (outcome.found()) drops.push_back(outcome.drop());
  return drops;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Standard error of the mean; none of a single value.
std::optional<double> standard_error(const std::vector<double>& values) {
  if (values.size() < 2) return std::nullopt;
  const double mean = mean_of(values), count = static_cast<double>(values.size());
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / (count - 1) / count);
}

// What is given more probability than by exact attention loses nothing.
std::vector<double> losses(std::vector<double> drops) {
  for (double& drop : drops) drop = std::max(0.0, drop);
  return drops;
}

Json metrics_of(std::span<const Outcome> outcomes) {
  const std::vector<double> drops = drops_of(outcomes);
  return {{"logprob_without", mean_of(outcomes, &Outcome::without)},
          {"logprob_exact", mean_of(outcomes, &Outcome::exact)},
          {"logprob_sparse", mean_of(outcomes, &Outcome::sparse)},
          {"drop", drops.empty() ? Json(nullptr) : Json(mean_of(drops))},
          {"found", drops.size()},
          {"facts", outcomes.size()}};
}

class RetrievalBench {
 public:
  explicit RetrievalBench(ModelBenchOptions& options, uint32_t sets)
      : options_(options), sets_(sets), bench_(options) {}

  Result<int> operator()() {
    HIFC_TRY(bench_.prepare(uint64_t{context()} + kQuestionTokensMax));
    if (options_.hot_ratios.empty())
      options_.hot_ratios = {bench_.config.flash_path ? kHotRatio : 1.0};
    HIFC_TRY(make_questions());
    HIFC_TRY(make_engines());
    HIFC_TRY(ask_without_facts());
    for (uint32_t set = 0; set < sets_; ++set) HIFC_TRY(ask_with_facts(set));
    return publish(report(), options_.output);
  }

 private:
  uint32_t context() const { return options_.contexts.front(); }

  // `text` as tokens that stand behind others.
  Result<std::vector<int32_t>> continuation(std::string_view text) const {
    HIFC_ASSIGN(const auto beginning, bench_.model->tokenize("", false));
    HIFC_ASSIGN(auto tokens, bench_.model->tokenize(text, false));
    tokens.erase(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(beginning.size()));
    return tokens;
  }

  // A tokenizer may join the end of the question to the answer: the answer is what differs.
  Result<Question> make_question(const Fact& fact) const {
    const std::string text = question_about(fact);
    HIFC_ASSIGN(const auto question, continuation(text));
    HIFC_ASSIGN(auto whole, continuation(text + std::string(fact.answer)));
    const auto differ = std::ranges::mismatch(question, whole).in2;
    const auto answer = static_cast<size_t>(differ - whole.begin());
    if (answer == 0 || whole.size() > kQuestionTokensMax)
      return failure(Code::kUnsupported,
                     fmt::format("the tokenizer makes {} of '{}'", plural(whole.size(), "token"),
                                 fact.beginning));
    return Question{.tokens = std::move(whole), .answer = answer};
  }

  Result<void> make_questions() {
    for (uint32_t set = 0; set < sets_; ++set) {
      QuestionSet& questions = questions_.emplace_back();
      for (const Fact& fact : fact_set(set)) {
        HIFC_ASSIGN(Question question, make_question(fact));
        questions.push_back(std::move(question));
      }
    }
    return {};
  }

  Result<void> make_engines() {
    const uint32_t tokens = context() + kQuestionTokensMax;
    HIFC_ASSIGN(exact_, bench_.make_engine({.context = tokens, .attention = "exact"}));
    HIFC_ASSIGN(sparse_, bench_.make_engine({.hot_ratio = options_.hot_ratios.front(),
                                             .context = tokens,
                                             .attention = "sparse"}));
    return {};
  }

  Result<void> ask_without_facts() {
    log_info("the text without facts");
    const auto text = std::span(bench_.tokens).first(context());
    for (QuestionSet& questions : questions_)
      HIFC_TRY(ask(*exact_, text, questions, &Outcome::without));
    return {};
  }

  Result<void> ask_with_facts(uint32_t set) {
    HIFC_ASSIGN(const auto text, text_with(fact_set(set)));
    log_info("facts {} of {}: exact attention", set + 1, sets_);
    exact_->truncate(0);
    HIFC_TRY(ask(*exact_, text, questions_[set], &Outcome::exact));
    log_info("facts {} of {}: sparse attention", set + 1, sets_);
    sparse_->truncate(0);
    return ask(*sparse_, text, questions_[set], &Outcome::sparse);
  }

  // As many tokens as the text has without them.
  Result<std::vector<int32_t>> text_with(std::span<const Fact, kFactsPerSet> facts) const {
    std::string statements;
    for (const Fact& fact : facts) statements += statement_of(fact) + "\n\n";
    HIFC_ASSIGN(const auto added, continuation(statements));
    const auto tokens = std::span(bench_.tokens);
    const size_t length = bytes_of(tokens.first(context() - added.size()));
    std::string text;
    while (text.size() < bytes_of(tokens)) text += bench_.text;
    HIFC_ASSIGN(auto placed, bench_.model->tokenize(place_facts(text, length, facts), false));
    placed.resize(std::min<size_t>(placed.size(), context()));
    return placed;
  }
  size_t bytes_of(std::span<const int32_t> tokens) const {
    size_t bytes = 0;
    for (const int32_t token : tokens) bytes += bench_.model->piece(token).size();
    return bytes;
  }

  // Each question alone behind the text.
  Result<void> ask(engine::Engine& engine, std::span<const int32_t> text, QuestionSet& questions,
                   double Outcome::* into) {
    for (Question& question : questions) {
      HIFC_TRY(check_interrupted());
      HIFC_TRY(go_to(engine, text));
      HIFC_ASSIGN(question.outcome.*into, answer(engine, question));
    }
    return {};
  }
  static Result<double> answer(engine::Engine& engine, const Question& question) {
    const std::vector<int32_t>& tokens = question.tokens;
    double sum = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i >= question.answer) sum += log_probability(engine.logits(), tokens[i]);
      if (i + 1 == tokens.size()) break;
      HIFC_TRY(engine.step({&tokens[i], 1}, engine::Outputs::kLast, cache::StepKind::kGeneration));
    }
    return sum;
  }

  BenchReport report() const {
    Json parameters = bench_.parameters();
    parameters["sets"] = sets_;
    parameters["policy"] = bench_.config.policy;
    parameters["mass"] = bench_.config.mass;
    parameters["found_nats"] = kFoundNats;
    BenchReport report("retrieval", std::move(parameters));
    std::vector<Outcome> all;
    for (uint32_t index = 0; index < kFactsPerSet; ++index) {
      std::vector<Outcome> outcomes;
      for (const QuestionSet& questions : questions_) outcomes.push_back(questions[index].outcome);
      report.add_row(fmt::format("retrieval.depth{:02}", depth_percent(index)),
                     metrics_of(outcomes));
      all.insert(all.end(), outcomes.begin(), outcomes.end());
    }
    add_mean(report, all);
    return report;
  }

  void add_mean(BenchReport& report, std::span<const Outcome> outcomes) const {
    Json metrics = metrics_of(outcomes);
    const std::vector<double> drops = drops_of(outcomes);
    const auto error = standard_error(drops);
    const Json none = nullptr;
    metrics["drop_standard_error"] = error ? Json(*error) : none;
    metrics["drop_max"] = drops.empty() ? none : Json(std::ranges::max(drops));
    metrics["loss"] = drops.empty() ? none : Json(mean_of(losses(drops)));
    const cache::SparseStatistics sparse = sparse_->cache_statistics().sparse;
    metrics["pages_selected_share"] = static_cast<double>(sparse.pages_selected) /
                                      static_cast<double>(std::max<uint64_t>(1, sparse.pages_seen));
    report.add_row("retrieval.mean", std::move(metrics), {{"drop", Bound::kAtMost, kDropNatsMax}});
  }

  ModelBenchOptions& options_;
  uint32_t sets_;
  ModelBench bench_;
  std::vector<QuestionSet> questions_;  // [set]
  std::unique_ptr<engine::Engine> exact_, sparse_;
};

// The rows of two would have the same names.
Result<void> check_single(const ModelBenchOptions& options) {
  if (options.contexts.size() > 1 || options.hot_ratios.size() > 1)
    return failure(Code::kInvalid, "bench retrieval takes one --context and one --hot-ratio");
  return {};
}

}  // namespace

void add_bench_retrieval(CLI::App& bench, Action& chosen) {
  CLI::App* retrieval = bench.add_subcommand(
      "retrieval", "Whether sparse attention finds single facts in a long text");
  retrieval->footer(
      "Ten facts stand at ten depths of the text, all before its newest pages. Each is asked for\n"
      "by its own sentence up to the answer, token by token. logprob_: of the whole answer, in\n"
      "nats; _without: exact attention over the text without facts. found: facts whose answer\n"
      "exact attention gives 1 nat more than that; drop: what sparse attention takes from these;\n"
      "loss: the same where drops below 0 count as 0.\n"
      "With --flash a quarter of the KV is hot, else all of it: results are the same to the bit.\n"
      "Examples, the second over another text:\n"
      "  hifc bench retrieval -m model.gguf --context 8000 --mass 0.98 --flash /data/kv\n"
      "  cat manual.txt notes.txt | hifc bench retrieval -m model.gguf -f -");
  auto options = add_model_bench_options(
      *retrieval, {.contexts = {8000}, .rounds = 0, .hot_ratios = {}, .context_min = kContextMin});
  auto sets = std::make_shared<uint32_t>(kFactSets);
  add_number(*retrieval, "--sets", *sets, between(1u, kFactSets),
             "Sets of ten facts, one after another in the same text");
  retrieval->callback([=, &chosen] {
    require(check_single(*options));
    chosen = [=] { return RetrievalBench(*options, *sets)(); };
  });
}

}  // namespace hifc::apps
