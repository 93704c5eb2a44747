# Target test_models: the random-weight GGUF files in HIFC_TEST_MODEL_DIR, written by
# tests/models/make_models.py in the virtual environment .venv. Tests labelled `model` depend on it.

set(HIFC_TEST_MODEL_DIR ${CMAKE_BINARY_DIR}/test-models)
find_program(HIFC_VENV_PYTHON python PATHS ${CMAKE_SOURCE_DIR}/.venv/bin NO_DEFAULT_PATH)
if(HIFC_TESTS AND HIFC_ENGINE)
  if(HIFC_VENV_PYTHON)
    set(generator ${CMAKE_SOURCE_DIR}/tests/models/make_models.py)
    add_custom_command(
      OUTPUT ${HIFC_TEST_MODEL_DIR}/made
      COMMAND ${HIFC_VENV_PYTHON} ${generator} ${HIFC_TEST_MODEL_DIR}
      COMMAND ${CMAKE_COMMAND} -E touch ${HIFC_TEST_MODEL_DIR}/made
      DEPENDS ${generator}
      COMMENT "Writing the test models" VERBATIM)
    add_custom_target(test_models DEPENDS ${HIFC_TEST_MODEL_DIR}/made)
  else()
    message(STATUS "No .venv: the test models are not written; run `scripts/setup python`")
  endif()
endif()
