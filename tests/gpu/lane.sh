#!/usr/bin/env bash
# Run the tests of this folder on the graphics cards of this machine, through Vulkan; on a machine without any,
# on two logical devices of Mesa's software driver, which computes the very programs that a card would get.
#
# usage: tests/gpu/lane.sh FOLDER [ARGUMENTS OF PYTEST]
#
# Into FOLDER go ggml's Vulkan backend, built from the very source that LocalSpec pins (3 minutes on two cores),
# the driver, and the programs that it makes: the first run takes half an hour on two idle cores, a later one
# minutes. FOLDER/env.sh has the variables with which `localspec` finds the same devices. Where llama.cpp was
# built for the card, nothing of this is needed: `python -m pytest -m gpu`.
set -euo pipefail

folder=$(mkdir -p "${1:?usage: $0 FOLDER [ARGUMENTS OF PYTEST]}" && cd "$1" && pwd)
shift
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}
backend=$folder/build/bin/libggml-vulkan.so

build() {
    local version source missing=()
    for tool in cmake ninja glslc c++; do command -v "$tool" >/dev/null || missing+=("$tool"); done
    [[ -e /usr/include/vulkan/vulkan.hpp ]] || missing+=(vulkan.hpp)
    if ((${#missing[@]})); then
        echo "lacking: ${missing[*]}; on Debian and Ubuntu this installs them:" >&2
        echo "  sudo apt-get install libvulkan-dev glslc spirv-headers cmake ninja-build g++" >&2
        exit 2
    fi
    version=$("$python" -c 'from importlib.metadata import version; print(version("llama-cpp-python"))')
    source=$folder/source/llama_cpp_python-$version
    if [[ ! -d "$source" ]]; then
        "$python" -m pip download --quiet --no-deps --no-binary :all: \
            --dest "$folder/source" "llama-cpp-python==$version"
        tar -xzf "$source.tar.gz" -C "$folder/source"
    fi
    if ! grep -qs LayerSettingEXT /usr/include/vulkan/*.hpp; then  # headers before 1.3.280: for validation only
        perl -0pi -e 's/VkBool32 enable_best_practice.*?&layer_setting_info\);/vk::InstanceCreateInfo instance_create_info(vk::InstanceCreateFlags{}, &app_info, layers, extensions);/s' \
            "$source/vendor/llama.cpp/ggml/src/ggml-vulkan/ggml-vulkan.cpp"
    fi
    mkdir -p "$folder/top"  # ggml cannot be configured by itself: the source lacks ggml.pc.in
    printf '%s\n' 'cmake_minimum_required(VERSION 3.19)' 'project(addon C CXX)' \
        "add_subdirectory($source/vendor/llama.cpp/ggml ggml)" >"$folder/top/CMakeLists.txt"
    cmake -S "$folder/top" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
        -DGGML_BACKEND_DL=ON -DGGML_CPU=OFF -DGGML_NATIVE=OFF -DGGML_VULKAN=ON
    cmake --build "$folder/build" --target ggml-vulkan -j "$(nproc)"
}

# Mesa's driver into FOLDER/mesa, without installing it. That of Debian 12 crashes: its backports have a good one.
fetch_driver() {
    local options=() apt=$folder/apt icd
    if grep -qs VERSION_CODENAME=bookworm /etc/os-release; then
        mkdir -p "$apt/none" "$apt/lists/partial"
        echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm-backports main' \
            >"$apt/sources.list"
        options=(-o "Dir::Etc::sourcelist=$apt/sources.list" -o "Dir::Etc::sourceparts=$apt/none"
            -o "Dir::State::lists=$apt/lists")
        apt-get "${options[@]}" -qq update
    fi
    mkdir -p "$folder/mesa"
    (cd "$folder/mesa" && apt-get "${options[@]}" -qq download mesa-vulkan-drivers libdrm2 libdrm-amdgpu1)
    for package in "$folder"/mesa/*.deb; do dpkg -x "$package" "$folder/mesa/root"; done
    icd=$(find "$folder/mesa/root" -name 'lvp_icd*.json')
    sed "s#\"library_path\": \".*\"#\"library_path\": \"$(find "$folder/mesa/root" -name libvulkan_lvp.so)\"#" \
        "$icd" >"$folder/lvp_icd.json"
}

cards() { "$python" -m localspec --list-devices 2>/dev/null | grep '^[^ ]' | grep -vc '^CPU:' || true; }

[[ -e "$backend" ]] || build
export GGML_BACKEND_PATH=$backend MESA_SHADER_CACHE_DIR=$folder/cache
variables=(GGML_BACKEND_PATH MESA_SHADER_CACHE_DIR)
if [[ $(cards) == 0 ]]; then
    [[ -e "$folder/lvp_icd.json" ]] || fetch_driver
    libraries=$(dirname "$(find "$folder/mesa/root" -name libvulkan_lvp.so)")
    export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export VK_ICD_FILENAMES=$folder/lvp_icd.json GGML_VK_VISIBLE_DEVICES=0,0
    variables+=(LD_LIBRARY_PATH VK_ICD_FILENAMES GGML_VK_VISIBLE_DEVICES)
fi
for name in "${variables[@]}"; do printf 'export %s=%q\n' "$name" "${!name}"; done >"$folder/env.sh"
exec "$python" -m pytest -m gpu tests/gpu "$@"
