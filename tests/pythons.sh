#!/usr/bin/env bash
# Install LocalSpec with Pythons that this machine lacks, and run its tests with each: Debian testing has the
# newest ones, and they run in a folder of their own. Needs root, and debootstrap (`apt-get install debootstrap`).
#
# usage: tests/pythons.sh FOLDER PYTHON... [-- ARGUMENTS OF PYTEST]
#        tests/pythons.sh /var/tmp/pythons python3.14 python3.15
#        tests/pythons.sh /var/tmp/pythons python3.15 -- tests/chat tests/cli
#
# Each Python runs what README.md has under "## Develop", on a copy of this checkout. The first run takes about
# ten minutes on two idle cores before the tests begin; llama.cpp is compiled once, for all of them. FOLDER takes
# 3 GB, and nothing outside is changed. FOLDER/PYTHON.log has what each printed. SUITE=sid takes Debian unstable.
set -euo pipefail

usage() {
    sed -n 's/^# usage: /usage: /p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

(($# >= 2)) || usage
folder=$(mkdir -p "$1" && cd "$1" && pwd)
shift
pythons=()
while (($#)) && [[ "$1" != -- ]]; do pythons+=("$1") && shift; done
((${#pythons[@]})) || usage
shift $(($# ? 1 : 0))  # the `--`
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$folder/root
llama=$(sed -n 's/.*"llama-cpp-python==\(.*\)".*/\1/p' pyproject.toml)

# Run a command in the root. The mounts are seen by it alone, and are gone when it ends.
inside() {
    unshare --mount --propagation private bash -euo pipefail -c '
        mount -t proc proc "$0/proc"
        mount --rbind /dev "$0/dev"
        mount --rbind /sys "$0/sys"
        exec chroot "$0" env HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
            PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"' "$root" "$@"
}

make_root() {
    local packages=(ca-certificates g++ git) python
    command -v debootstrap >/dev/null || { echo "lacking: debootstrap (apt-get install debootstrap)" >&2; exit 2; }
    ((EUID == 0)) || { echo "debootstrap and chroot need root" >&2; exit 2; }
    [[ -e "$root/made" ]] || { debootstrap --variant=minbase "${SUITE:-testing}" "$root" && touch "$root/made"; }
    copy_network_settings
    apt-config dump Acquire >"$root/etc/apt/apt.conf.d/90acquire"
    for python in "${pythons[@]}"; do packages+=("$python-venv" "$python-dev"); done
    inside apt-get -qq update
    inside apt-get -qq install --no-install-recommends "${packages[@]}"
    copy_network_settings  # the package of certificates wrote its own over ours
}

# Copy what pip and apt need to reach their servers from here, a proxy's certificate among it.
copy_network_settings() {
    local file
    for file in /etc/resolv.conf /etc/pip.conf /etc/xdg/pip /etc/ssl/certs/ca-certificates.crt; do
        if [[ -e "$file" ]]; then
            mkdir -p "$root${file%/*}"
            cp -rLT "$file" "$root$file"
        fi
    done
}

# Copy what git knows of the checkout, and what it does not ignore; leave what the last run installed.
copy_to() {
    mkdir -p "$1"
    find "$1" -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
    git ls-files -z --cached --others --exclude-standard | xargs -0 ls -d 2>/dev/null |
        tar --create --files-from=- | tar --extract --no-same-owner --directory="$1"
}

# The wheel holds no Python code that is compiled, so that one serves every Python.
compile_llama() {
    inside bash -euo pipefail -c '
        cd "$1"
        source <(sed -n "/^## Develop/,\$ s/^export /export /p" README.md)
        "$2" -m venv /wheels/builder
        /wheels/builder/bin/pip wheel --no-deps --wheel-dir /wheels "llama-cpp-python==$3"
    ' bash "$@"
}

run_tests() {
    inside bash -euo pipefail -c '
        mkdir -p "/pythons/$1"
        printf "#!/bin/sh\nexec %s \"\$@\"\n" "$(command -v "$1")" >"/pythons/$1/python3"  # as README.md calls it
        chmod +x "/pythons/$1/python3"
        export PATH=/pythons/$1:$PATH PIP_FIND_LINKS=/wheels
        cd "/$2"
        shift 2
        PYTEST_ADDOPTS="${*@Q}" .ci/run' bash "$@"
}

make_root
failed=()
for python in "${pythons[@]}"; do
    copy_to "$root/localspec-$python"
    {
        { compgen -G "$root/wheels/llama_cpp_python-$llama-*" >/dev/null ||
            compile_llama "/localspec-$python" "$python" "$llama"; } &&
            run_tests "$python" "localspec-$python" "$@"
    } 2>&1 | tee "$folder/$python.log" || failed+=("$python")
done
for python in "${pythons[@]}"; do echo "$python: $(tail -n 1 "$folder/$python.log")"; done
((${#failed[@]} == 0))
