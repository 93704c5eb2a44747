# hifc_module(NAME SOURCES a.cpp ... [DEPENDS module ...] [LINK library ...])
#   One static library per folder of src/. DEPENDS names the modules it may include; the edges point
#   only downward (ARCHITECTURE.md) and scripts/check-layers rejects an undeclared include.
# hifc_test(NAME SOURCES a_test.cpp ... [DEPENDS module ...] [LINK library ...] [LABELS label ...])
#   One GoogleTest program; each of its tests is a ctest test. The label `model` is for tests that
#   run libllama: they are left out under the thread sanitizer, and find their models in the folders
#   HIFC_TEST_MODEL_DIR (tests/models/make_models.py) and HIFC_MODEL_DIR (downloaded), two string
#   macros. The label `long` is for fuzzing and simulation beyond the usual.

# Fields that a designated initializer leaves out are meant to have their defaults.
set(HIFC_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion)
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  list(APPEND HIFC_WARNINGS -Wthread-safety -Wno-missing-designated-field-initializers)
else()
  list(APPEND HIFC_WARNINGS -Wno-missing-field-initializers)
endif()
if(HIFC_WERROR)
  list(APPEND HIFC_WARNINGS -Werror)
endif()

function(hifc_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LINK" ${ARGN})
  add_library(hifc_${name} STATIC ${ARG_SOURCES})
  target_include_directories(hifc_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(hifc_${name} PRIVATE ${HIFC_WARNINGS})
  list(TRANSFORM ARG_DEPENDS PREPEND hifc_)
  target_link_libraries(hifc_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_LINK})
  set_property(GLOBAL APPEND PROPERTY HIFC_MODULES hifc_${name})
endfunction()

function(hifc_test name)
  if(NOT HIFC_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LINK;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(${name} PRIVATE ${HIFC_WARNINGS})
  list(TRANSFORM ARG_DEPENDS PREPEND hifc_)
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} ${ARG_LINK} GTest::gtest_main)
  include(GoogleTest)
  set(properties TIMEOUT 600)
  if(ARG_LABELS)
    list(APPEND properties LABELS "${ARG_LABELS}")
  endif()
  if(model IN_LIST ARG_LABELS)
    # llama's threads spin at barriers: two such tests at once slow each other down many times over.
    list(APPEND properties RUN_SERIAL ON)
    target_compile_definitions(${name} PRIVATE HIFC_TEST_MODEL_DIR="${HIFC_TEST_MODEL_DIR}"
                                               HIFC_MODEL_DIR="${HIFC_MODEL_DIR}")
    if(TARGET test_models)
      add_dependencies(${name} test_models)
    endif()
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       PROPERTIES ${properties})
endfunction()
