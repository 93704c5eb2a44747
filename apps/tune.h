// The commands of hifc tune.
#pragma once

#include "apps/command.h"

namespace hifc::apps {

void add_tune_heads(CLI::App& tune, Action& chosen);

}  // namespace hifc::apps
