// The spans that the cache records (base/trace.h); docs/trace.md says what they mean.
#pragma once

#include "base/trace.h"

namespace hifc::cache {

inline constexpr TraceKind kTracePlan{.track = "engine", .category = "cache", .name = "plan"};
inline constexpr TraceKind kTraceEndStep{
    .track = "engine", .category = "cache", .name = "end step"};
inline constexpr TraceKind kTraceLoad{
    .track = "engine", .category = "cache", .name = "load group", .arguments = {"group"}};
inline constexpr TraceKind kTraceSave{.track = "engine", .category = "cache", .name = "save"};

inline constexpr TraceKind kTraceLayer{.track = "engine",
                                       .category = "layer",
                                       .name = "layer",
                                       .arguments = {"layer"},
                                       .numbered = true};
inline constexpr TraceKind kTraceAppend{
    .track = "engine", .category = "compute", .name = "append", .arguments = {"layer"}};
inline constexpr TraceKind kTraceSeal{.track = "engine",
                                      .category = "compute",
                                      .name = "seal",
                                      .arguments = {"layer", "group", "pages"}};
inline constexpr TraceKind kTraceSubmit{
    .track = "engine", .category = "io", .name = "submit", .arguments = {"layer"}};
inline constexpr TraceKind kTraceVerify{
    .track = "engine", .category = "compute", .name = "verify", .arguments = {"layer", "blocks"}};
inline constexpr TraceKind kTraceAttention{.track = "engine",
                                           .category = "compute",
                                           .name = "attention",
                                           .arguments = {"layer", "splits"}};
inline constexpr TraceKind kTraceMerge{
    .track = "engine", .category = "compute", .name = "merge", .arguments = {"layer"}};

// Of sparse attention.
inline constexpr TraceKind kTraceSelect{
    .track = "engine", .category = "compute", .name = "select", .arguments = {"layer"}};
inline constexpr TraceKind kTraceObserve{
    .track = "engine", .category = "compute", .name = "observe", .arguments = {"layer"}};
inline constexpr TraceKind kTraceSketch{
    .track = "engine", .category = "compute", .name = "sketch", .arguments = {"layer", "pages"}};

// Together CacheStatistics::stall_ns.
inline constexpr TraceKind kTraceStallReads{
    .track = "engine", .category = "stall", .name = "stall: reads", .arguments = {"layer"}};
inline constexpr TraceKind kTraceStallFrames{
    .track = "engine", .category = "stall", .name = "stall: frames", .arguments = {"layer"}};

// Asynchronous: from being given to the store until the engine's thread learns of its end.
inline constexpr TraceKind kTraceRead{.track = "reads",
                                      .category = "io",
                                      .name = "read",
                                      .arguments = {"layer", "group", "blocks", "bytes"}};
inline constexpr TraceKind kTraceWrite{.track = "writes",
                                       .category = "io",
                                       .name = "write",
                                       .arguments = {"group", "groups", "bytes"}};

}  // namespace hifc::cache
