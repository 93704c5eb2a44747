# Target hifc_llama: libllama with llama.h, ggml.h and ggml-cpu.h.
#
# By default llama.cpp is built from HIFC_LLAMA_DIR, always optimised and without sanitizers (its
# thread pool spins on relaxed atomics, which the thread sanitizer reports). OpenMP is off because
# its threads spin against HiFC's. With HIFC_SYSTEM_LLAMA an installed llama.cpp is used instead.

function(hifc_add_llama_source)
  set(CMAKE_BUILD_TYPE Release)
  set(CMAKE_CXX_STANDARD 17)
  set(CMAKE_CXX_EXTENSIONS ON)
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
  set(CMAKE_EXPORT_COMPILE_COMMANDS OFF)
  set(flags -w)
  if(HIFC_SANITIZE AND HIFC_SANITIZE_LLAMA)
    list(JOIN HIFC_SANITIZE "," names)
    string(APPEND flags " -fsanitize=${names} -fno-omit-frame-pointer")
  endif()
  set(CMAKE_C_FLAGS "${CMAKE_C_FLAGS} ${flags}")
  set(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} ${flags}")

  set(BUILD_SHARED_LIBS OFF)
  set(GGML_NATIVE ON)
  set(GGML_OPENMP OFF)
  set(GGML_LLAMAFILE OFF)
  set(GGML_CCACHE OFF)
  set(GGML_ALL_WARNINGS OFF)
  set(GGML_BUILD_TESTS OFF)
  set(GGML_BUILD_EXAMPLES OFF)
  set(LLAMA_ALL_WARNINGS OFF)
  foreach(part COMMON TESTS TOOLS EXAMPLES SERVER APP UI MTMD)
    set(LLAMA_BUILD_${part} OFF)
  endforeach()
  # Without these llama.cpp takes them from the enclosing git repository, that is, from HiFC's, and
  # is rebuilt after each commit.
  set(LLAMA_BUILD_NUMBER 0)
  set(LLAMA_BUILD_COMMIT unknown)
  set(GIT_EXE true)
  set(GIT_EXECUTABLE true)
  set(CMAKE_MESSAGE_LOG_LEVEL WARNING)
  add_subdirectory(${HIFC_LLAMA_DIR} ${CMAKE_BINARY_DIR}/llama EXCLUDE_FROM_ALL SYSTEM)

  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14
     AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    # GCC 12 removes the stores to the AMX tile configuration as dead; the AMX path then crashes.
    # The options must follow ggml's -march=native.
    target_compile_options(ggml-cpu PRIVATE -mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
  endif()
endfunction()

if(HIFC_SYSTEM_LLAMA)
  find_package(llama REQUIRED)
elseif(EXISTS ${HIFC_LLAMA_DIR}/include/llama.h)
  hifc_add_llama_source()
else()
  message(FATAL_ERROR
    "There is no llama.cpp source in ${HIFC_LLAMA_DIR}. Run `make setup`, or pass "
    "-DHIFC_LLAMA_DIR=PATH, -DHIFC_SYSTEM_LLAMA=ON (an installed llama.cpp) or -DHIFC_ENGINE=OFF "
    "(the store and the kernels alone).")
endif()

add_library(hifc_llama INTERFACE)
target_link_libraries(hifc_llama INTERFACE llama $<IF:$<TARGET_EXISTS:ggml::ggml>,ggml::ggml,ggml>)
