#include "apps/arguments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace hifc::apps {
namespace {

struct Numbers {
  int32_t tokens = 128;
  uint32_t threads = 0;
  double seconds = 0.5;
  float share = 0.25f;
  std::vector<double> ratios = {1.0};
};

void add_to(CLI::App& app, Numbers& numbers) {
  add_number(app, "-n,--tokens", numbers.tokens, between(-1, 100), "");
  add_number(app, "--threads", numbers.threads, between(0u, 512u), "");
  add_number(app, "--seconds", numbers.seconds, between(0.01, 3600.0), "");
  add_number(app, "--share", numbers.share, at_least(0.0f), "");
  add_numbers(app, "--ratio", numbers.ratios, between(0.0, 1.0), "");
}

Numbers parsed(std::vector<std::string> arguments) {
  CLI::App app;
  Numbers numbers;
  add_to(app, numbers);
  std::ranges::reverse(arguments);  // CLI11 takes them last first
  app.parse(arguments);
  return numbers;
}

std::string refused(std::vector<std::string> arguments) {
  const std::vector<std::string> words = arguments;
  try {
    parsed(std::move(arguments));
  } catch (const BadValue& error) {
    return error.sentence(words);
  }
  return "";
}

TEST(AddNumber, TakesNumbersWithinTheRange) {
  EXPECT_EQ(parsed({}).tokens, 128);
  EXPECT_EQ(parsed({"-n", "-1"}).tokens, -1);
  EXPECT_EQ(parsed({"--tokens=100", "--threads", "512"}).tokens, 100);
  EXPECT_EQ(parsed({"--seconds", "1e1"}).seconds, 10);
  EXPECT_EQ(parsed({"--share", "0"}).share, 0);
  EXPECT_EQ(parsed({"--ratio", "0,0.5", "--ratio", "1"}).ratios, (std::vector<double>{0, 0.5, 1}));
}

TEST(AddNumber, ShowsTheStandardValue) {
  CLI::App app;
  Numbers numbers;
  add_to(app, numbers);
  EXPECT_NE(app.help().find("-n,--tokens N=128"), std::string::npos) << app.help();
}

TEST(AddNumber, NamesTheFlagAsTypedTheValueAndWhatIsAccepted) {
  const std::string accepted = " is not accepted; accepted is a whole number from -1 to 100";
  EXPECT_EQ(refused({"-n", "abc"}), "-n: \"abc\"" + accepted);
  EXPECT_EQ(refused({"-nabc"}), "-n: \"abc\"" + accepted);
  EXPECT_EQ(refused({"--tokens", "1.5"}), "--tokens: \"1.5\"" + accepted);
  EXPECT_EQ(refused({"--tokens=99999999999"}), "--tokens: \"99999999999\"" + accepted);
  EXPECT_EQ(refused({"-n", ""}), "-n: \"\"" + accepted);
  EXPECT_EQ(refused({"--threads", "-5"}),
            "--threads: \"-5\" is not accepted; accepted is a whole number from 0 to 512");
}

TEST(AddNumber, RefusesWhatIsNoFiniteNumber) {
  for (const std::string value : {"nan", "-nan", "inf", "-inf", "infinity", "NAN", "1e999"}) {
    EXPECT_EQ(
        refused({"--seconds", value}),
        "--seconds: \"" + value + "\" is not accepted; accepted is a number from 0.01 to 3600");
    EXPECT_EQ(refused({"--share=" + value}),
              "--share: \"" + value + "\" is not accepted; accepted is a number of 0 or more");
    EXPECT_EQ(refused({"--ratio", "1.0," + value}),
              "--ratio: \"" + value + "\" is not accepted; accepted is a number from 0 to 1");
  }
}

std::string unknown(const std::vector<std::string>& arguments) {
  CLI::App app("", "hifc");
  CLI::App* run = app.add_subcommand("run");
  std::string file;
  run->add_option("file", file);
  CLI::App* store = app.add_subcommand("store");
  store->add_subcommand("stat");
  store->add_subcommand("verify");
  const auto checked = check_commands(app, arguments);
  return checked ? "" : checked.error().message();
}

TEST(CheckCommands, NamesTheWordAndWhatWasMeant) {
  EXPECT_EQ(unknown({"store", "verfy", "D"}),
            "\"verfy\" is not a command of store; accepted are stat, verify (did you mean "
            "verify?)");
  EXPECT_EQ(unknown({"stor", "stat", "D"}),
            "\"stor\" is not a command of hifc; accepted are run, store (did you mean store?)");
  EXPECT_EQ(unknown({"nonsense", "--help"}),
            "\"nonsense\" is not a command of hifc; accepted are run, store");
}

TEST(CheckCommands, LeavesTheRestToTheCommand) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"--help"},
                                             {"run", "whatever"},
                                             {"store"},
                                             {"store", "--help"},
                                             {"store", "stat", "x"}})
    EXPECT_EQ(unknown(arguments), "");
}

}  // namespace
}  // namespace hifc::apps
