# Installs the packages of tests/mcp into target/mcp, for the scripts that source this file from the project's folder; sets
# MCP_SERVICE, MCP_MODULES, MCP_NODE and MCP_PYTHON.
# shellcheck shell=bash

work=${CARGO_TARGET_DIR:-target}/mcp
mkdir -p "$work"
work=$(cd "$work" && pwd)

service=${HOLDPOINT_BIN:-}
if [ -z "$service" ]; then
  cargo build --quiet --locked --profile test
  service=${CARGO_TARGET_DIR:-target}/debug/holdpoint
fi
MCP_SERVICE=$(cd "$(dirname "$service")" && pwd)/$(basename "$service")

# Exit code 0 if the installation matches these files.
is_fresh() { # stamp, files
  local stamp=$1
  shift
  [ -f "$stamp" ] && [ "$(cat "$@" | cksum)" = "$(cat "$stamp")" ]
}

# Installs the packages of a folder with package.json and package-lock.json.
install_node() { # source, target
  local files=("$1/package.json" "$1/package-lock.json")
  is_fresh "$2.installed" "${files[@]}" && return
  mkdir -p "$2"
  cp "${files[@]}" "$2/"
  npm --prefix "$2" ci --silent --no-audit --no-fund --ignore-scripts
  cat "${files[@]}" | cksum >"$2.installed"
}

# Installs the packages of a folder with requirements.txt.
install_python() { # source, target
  local file=$1/requirements.txt
  is_fresh "$2.installed" "$file" && return
  rm -rf "$2"
  python3 -m venv "$2"
  "$2/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r "$file"
  cksum <"$file" >"$2.installed"
}

install_node tests/mcp/node "$work/node"
MCP_MODULES=$work/node/node_modules
# The conformance suite needs a newer Node.js than Debian has.
MCP_NODE=$(find "$MCP_MODULES" -path '*/node-*/bin/node' -type f | head -n 1)
[ -n "$MCP_NODE" ] || MCP_NODE=$(command -v node)
install_python tests/mcp/python "$work/python"
MCP_PYTHON=$work/python/bin/python
export MCP_SERVICE MCP_MODULES MCP_NODE MCP_PYTHON PYTHONDONTWRITEBYTECODE=1
