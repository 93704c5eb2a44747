# Each target does the set-up it needs; a second run finds it done. CMake and CMakePresets.json do
# the building, scripts/ the rest.
.PHONY: build setup test demo bench format check-format clean

build: setup
	@scripts/build release

setup:
	@scripts/setup

test: build
	@scripts/test release

demo: build
	@scripts/demo

bench: build
	@scripts/bench

format:
	@scripts/setup packages
	@scripts/format

check-format:
	@scripts/setup packages
	@scripts/format --check

clean:
	rm -rf build build-dev build-asan build-tsan build-gcc build-fuzz
