# hifc_fuzz(NAME SOURCES a_fuzz.cpp b.cpp ... [LINK library ...] [DEFINITIONS macro ...]
#           [RUNS number] [LENGTH bytes] [FINDS pattern])
#   One libFuzzer program, NAME_fuzz: the fuzzer, and the sources it is about once more, so that it
#   sees their branches; everything else comes from libraries. The ctest test fuzz.NAME is RUNS
#   inputs of at most LENGTH bytes from a fixed seed; fuzz.NAME.long, labelled `long`, goes on for
#   minutes from a fresh one. With FINDS the program is a canary instead: its one test passes only
#   when the fuzzer stops at a failure that prints the pattern.

include_guard(GLOBAL)
option(HIFC_FUZZ "Build the fuzzers, with clang, and run each of them for a moment as a test" ON)

# Empty where they can be built.
function(hifc_fuzz_obstacle result)
  set(${result} "" PARENT_SCOPE)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL Clang)
    set(${result} "libFuzzer belongs to clang" PARENT_SCOPE)
  elseif("thread" IN_LIST HIFC_SANITIZE)
    set(${result} "they run under the address sanitizer" PARENT_SCOPE)
  else()
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_FLAGS -fsanitize=fuzzer,address)
    check_cxx_source_compiles(
      "extern \"C\" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }"
      HIFC_HAVE_LIBFUZZER)
    if(NOT HIFC_HAVE_LIBFUZZER)
      set(${result} "clang's libFuzzer is not installed" PARENT_SCOPE)
    endif()
  endif()
endfunction()

set(HIFC_FUZZERS OFF CACHE INTERNAL "")
if(HIFC_TESTS AND HIFC_FUZZ)
  hifc_fuzz_obstacle(obstacle)
  if(obstacle)
    message(STATUS "No fuzzers: ${obstacle}")
  else()
    set(HIFC_FUZZERS ON CACHE INTERNAL "")
  endif()
endif()

function(hifc_fuzz name)
  if(NOT HIFC_FUZZERS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "RUNS;LENGTH;FINDS" "SOURCES;LINK;DEFINITIONS" ${ARGN})
  set(program ${name}_fuzz)
  set(sanitizers -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all)
  add_executable(${program} ${ARG_SOURCES})
  target_include_directories(${program} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  # With the checks of debug builds, our own and those of the standard library.
  target_compile_definitions(${program} PRIVATE _GLIBCXX_ASSERTIONS ${ARG_DEFINITIONS})
  target_compile_options(${program} PRIVATE ${HIFC_WARNINGS} ${sanitizers} -O1 -UNDEBUG
                                            -gline-tables-only)
  target_link_options(${program} PRIVATE ${sanitizers})
  target_link_libraries(${program} PRIVATE ${ARG_LINK})

  set(options -max_len=${ARG_LENGTH} -len_control=0 -timeout=60
              -artifact_prefix=${CMAKE_CURRENT_BINARY_DIR}/${name}-)
  add_test(NAME fuzz.${name} COMMAND ${program} -seed=1 -runs=${ARG_RUNS} ${options})
  set_tests_properties(fuzz.${name} PROPERTIES LABELS fuzz TIMEOUT 300)
  if(ARG_FINDS)
    set_tests_properties(fuzz.${name} PROPERTIES PASS_REGULAR_EXPRESSION "${ARG_FINDS}")
    return()
  endif()
  add_test(NAME fuzz.${name}.long COMMAND ${program} -max_total_time=600 ${options})
  set_tests_properties(fuzz.${name}.long PROPERTIES LABELS "fuzz;long" TIMEOUT 900)
endfunction()
