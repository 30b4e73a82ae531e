"""Packs a binary as a wheel: wheel.py BINARY FOLDER LEVEL PLATFORM, run in the repository's root by
scripts/release. LEVEL is that of the compression, 1 to 9; PLATFORM is the last part of the wheel's tag.

The wheel is the same bytes each time for the same binary. It installs two commands: `holdpoint`, the binary, and
`holdpoint-server`, a launcher of it, since `uvx NAME` runs the command of the package's own name.
"""

import base64
import hashlib
import re
import sys
import tomllib
import zipfile
from pathlib import Path

LAUNCHER = '#!/bin/sh\nexec "$(dirname "$(readlink -f "$0")")/holdpoint" "$@"\n'
LICENCES = ["LICENSE-APACHE", "LICENSE-MIT"]


def metadata(package: dict[str, str]) -> str:
    fields = [
        ("Metadata-Version", "2.4"),
        ("Name", "holdpoint-server"),
        ("Version", package["version"]),
        ("Summary", package["description"]),
        ("License-Expression", package["license"]),
        *(("License-File", name) for name in LICENCES),
        ("Description-Content-Type", "text/markdown"),
    ]
    head = "".join(f"{name}: {value}\n" for name, value in fields)
    return f"{head}\n{Path('packaging/README.md').read_text()}"


def main(binary: str, folder: str, level: str, platform: str) -> None:
    package = tomllib.loads(Path("Cargo.toml").read_text())["package"]
    version = package["version"]
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        sys.exit(f"wheel.py: {version}: Python spells such a version differently")
    stem = f"holdpoint_server-{version}"
    tag = f"py3-none-{platform}"
    # The name of each file in the wheel, with its content and mode.
    files = {
        f"{stem}.data/scripts/holdpoint": (Path(binary).read_bytes(), 0o755),
        f"{stem}.data/scripts/holdpoint-server": (LAUNCHER.encode(), 0o755),
        f"{stem}.dist-info/METADATA": (metadata(package).encode(), 0o644),
        f"{stem}.dist-info/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: holdpoint\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
            0o644,
        ),
        **{f"{stem}.dist-info/licenses/{name}": (Path(name).read_bytes(), 0o644) for name in LICENCES},
    }
    record = f"{stem}.dist-info/RECORD"
    lines = [f"{name},{digest(content)},{len(content)}" for name, (content, _) in files.items()]
    files[record] = ("\n".join([*lines, f"{record},,", ""]).encode(), 0o644)

    path = Path(folder) / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, (content, mode) in files.items():
            entry = zipfile.ZipInfo(name)  # dated 1980
            entry.external_attr = (0o100000 | mode) << 16
            wheel.writestr(entry, content, zipfile.ZIP_DEFLATED, int(level))


def digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


main(*sys.argv[1:])
