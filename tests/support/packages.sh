# Functions for scripts that test the built service from outside: its program, its processes, a folder, and packages.
# The scripts source this file from the project's folder.
# shellcheck shell=bash

# Python must write no compiled files into the folders of the tests.
export PYTHONDONTWRITEBYTECODE=1

# Makes the folder in which a script keeps its packages, and prints its path.
work_folder() { # name
  local folder=${CARGO_TARGET_DIR:-target}/$1
  mkdir -p "$folder" || return 1
  (cd "$folder" && pwd)
}

# Prints the path of the service's program: HOLDPOINT_BIN, or the build of the tests.
service_program() {
  local program=${HOLDPOINT_BIN:-}
  if [ -z "$program" ]; then
    cargo build --quiet --locked --profile test >&2 || return 1
    program=${CARGO_TARGET_DIR:-target}/debug/holdpoint
  fi
  printf '%s/%s\n' "$(cd "$(dirname "$program")" && pwd)" "$(basename "$program")"
}

# Makes the folder `run` for the files of this run. When the script ends, the processes in `pids` are ended, the last
# one first, so that no client outlives its server, and the folder is removed. If the script has failed, first prints the last lines of the service's log.
start_run() {
  run=$(mktemp -d)
  pids=()
  trap finish_run EXIT
}

finish_run() {
  local status=$? place
  for ((place = ${#pids[@]} - 1; place >= 0; place--)); do
    kill "${pids[place]}" 2>/dev/null || true
    wait "${pids[place]}" 2>/dev/null || true
  done
  if [ "$status" -ne 0 ] && [ -s "$run/service.log" ]; then
    echo "${0##*/}: the service's last lines:" >&2
    tail -n 20 "$run/service.log" >&2
  fi
  rm -rf "$run"
}

# Unsets the caller's own settings of the service.
unset_settings() {
  local name
  for name in $(env | grep -o '^HOLDPOINT_[A-Za-z0-9_]*' || true); do unset "$name"; done
}

free_port() {
  python3 tests/support/ports.py
}

# Waits until the service is ready. Fails if it does not get ready in time.
until_ready() { # URL, process
  for _ in $(seq 100); do
    curl --silent --fail --output /dev/null "$1/readyz" && break
    kill -0 "$2" 2>/dev/null || break
    sleep 0.1
  done
  curl --silent --show-error --fail --output /dev/null "$1/readyz"
}

# Returns 0 if the installation was made from these files.
is_fresh() { # stamp, files
  local stamp=$1
  shift
  [ -f "$stamp" ] && [ "$(cat "$@" | cksum)" = "$(cat "$stamp")" ]
}

# Installs the packages of a folder with package.json and package-lock.json.
install_node() { # source, target, more options of npm
  local files=("$1/package.json" "$1/package-lock.json")
  is_fresh "$2.installed" "${files[@]}" && return
  mkdir -p "$2"
  cp "${files[@]}" "$2/"
  npm --prefix "$2" ci --silent --no-audit --no-fund "${@:3}"
  cat "${files[@]}" | cksum >"$2.installed"
}

# Installs the packages of a folder with requirements.txt.
install_python() { # source, target, more options of pip
  local file=$1/requirements.txt pip
  is_fresh "$2.installed" "$file" && return
  rm -rf "$2"
  # The machine's pip saves seconds for a pip in each environment. Before version 22.3 it serves no other environment.
  if python3 -c 'import pip, sys; sys.exit(tuple(map(int, pip.__version__.split(".")[:2])) < (22, 3))' 2>/dev/null; then
    python3 -m venv --without-pip "$2"
    pip=(python3 -m pip --python "$2/bin/python")
  else
    python3 -m venv "$2"
    pip=("$2/bin/python" -m pip)
  fi
  "${pip[@]}" install --quiet --disable-pip-version-check "${@:3}" -r "$file"
  cksum <"$file" >"$2.installed"
}

# Prints the path of a Node.js: from a package, which is newer than Debian's, or else from PATH.
node_program() { # folder of node_modules
  local found
  found=$(find "$1" -path '*/node-*/bin/node' -type f | head -n 1)
  [ -n "$found" ] || found=$(command -v node)
  printf '%s\n' "$found"
}

# Options of pip for requirements that contain the hashes of their wheels.
# shellcheck disable=SC2034 # for the scripts that source this file
pinned=(--only-binary :all: --require-hashes)
