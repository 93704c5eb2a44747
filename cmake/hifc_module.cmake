# hifc_module(NAME SOURCES a.cpp ... [DEPENDS module ...] [LINK library ...])
#   One static library per folder of src/. DEPENDS names the modules it may include; the edges point
#   only downward (ARCHITECTURE.md) and scripts/check-layers rejects an undeclared include.
# hifc_test(NAME SOURCES a_test.cpp ... [DEPENDS module ...] [LINK library ...])
#   One GoogleTest program; each of its tests is a ctest test.

set(HIFC_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion)

function(hifc_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LINK" ${ARGN})
  add_library(hifc_${name} STATIC ${ARG_SOURCES})
  target_include_directories(hifc_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(hifc_${name} PRIVATE ${HIFC_WARNINGS})
  list(TRANSFORM ARG_DEPENDS PREPEND hifc_)
  target_link_libraries(hifc_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_LINK})
endfunction()

function(hifc_test name)
  if(NOT HIFC_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE ${HIFC_WARNINGS})
  list(TRANSFORM ARG_DEPENDS PREPEND hifc_)
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} ${ARG_LINK} GTest::gtest_main)
  include(GoogleTest)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST)
endfunction()
