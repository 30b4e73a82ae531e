# Installs the packages of tests/mcp into target/mcp. Scripts source this file from the project's folder. Sets
# MCP_SERVICE, MCP_MODULES, MCP_NODE and MCP_PYTHON. If the script's argument is `install`, ends the script after the
# installation.
# shellcheck shell=bash

# shellcheck source=tests/support/packages.sh
. tests/support/packages.sh
work=$(work_folder mcp)
install_node tests/mcp/node "$work/node" --ignore-scripts
MCP_MODULES=$work/node/node_modules
# The conformance suite needs a newer Node.js than Debian has.
MCP_NODE=$(node_program "$MCP_MODULES")
install_python tests/mcp/python "$work/python" "${pinned[@]}"
MCP_PYTHON=$work/python/bin/python
[ "${1:-}" != install ] || exit 0
MCP_SERVICE=$(service_program)
export MCP_SERVICE MCP_MODULES MCP_NODE MCP_PYTHON
