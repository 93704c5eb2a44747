// --trace FILE: a Trace as Chrome trace-event JSON, which Perfetto opens (docs/trace.md).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/function_ref.h"
#include "base/result.h"
#include "base/trace.h"

namespace CLI {
class App;
}  // namespace CLI

namespace hifc::apps {

// Gives the JSON piece by piece. `process` is any text, the name that the timeline has.
void print_trace(const Trace& trace, std::string_view process,
                 FunctionRef<void(std::string_view)> out);

// What a command records when it is asked to, and the file that this goes to.
class TraceFile {
 public:
  void add_option(CLI::App& app);

  // Begins recording; before the work, since a file that cannot be made is an error. Without the
  // option nothing happens.
  Result<void> start();
  // Null without the option. Valid as long as this object.
  Trace* trace() const { return trace_.get(); }
  // Writes what there is, also where the work failed or was interrupted.
  Result<void> write(std::string_view process) const;

 private:
  std::string path_;
  SystemClock clock_;
  std::unique_ptr<Trace> trace_;
};

}  // namespace hifc::apps
