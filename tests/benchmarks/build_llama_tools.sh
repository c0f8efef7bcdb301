#!/usr/bin/env bash
# Build llama-server and llama-bench from the very source distribution that LocalSpec pins.
#
# usage: tests/benchmarks/build_llama_tools.sh FOLDER
# Afterwards: localspec bench --against llama-server=FOLDER/build/bin/llama-server
#
# CMAKE_ARGS is passed on, so that both sides can be built alike (`CMAKE_ARGS=-DGGML_CUDA=on` for a card).
# Needs Python with pip, a C++ compiler, and the wheels of cmake and ninja (fetched when they are missing).
set -euo pipefail

folder=$(mkdir -p "${1:?usage: $0 FOLDER}" && cd "$1" && pwd)
python=${PYTHON:-python3}
version=$("$python" -c 'from importlib.metadata import version; print(version("llama-cpp-python"))')

mkdir -p "$folder/source"
"$python" -m pip download --quiet --no-deps --no-binary llama-cpp-python \
    --dest "$folder/source" "llama-cpp-python==$version"
tar -xzf "$folder/source/llama_cpp_python-$version.tar.gz" -C "$folder/source"

if ! command -v cmake >/dev/null || ! command -v ninja >/dev/null; then
    "$python" -m venv "$folder/tools"
    "$folder/tools/bin/pip" install --quiet cmake ninja
    PATH="$folder/tools/bin:$PATH"
fi

# The switches below leave out what only makes the build longer: tests, examples, the web page, HTTPS.
# shellcheck disable=SC2086
cmake -G Ninja -S "$folder/source/llama_cpp_python-$version/vendor/llama.cpp" -B "$folder/build" \
    -DCMAKE_BUILD_TYPE=Release \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF ${CMAKE_ARGS:-}
cmake --build "$folder/build" --target llama-server llama-bench llama-quantize
"$folder/build/bin/llama-server" --version
