"""Makes a sealed link like the links in messages: `python3 link.py SEALING_KEY TENANT USER REQUEST_ID [HOURS]` prints
the link's token, which works for HOURS hours (default 72).

This second implementation beside the service's own was written from the description of the format alone (HKDF-SHA256,
XChaCha20-Poly1305)."""

import base64
import hashlib
import hmac
import os
import struct
import sys
import time
import uuid

MASK = 0xFFFFFFFF
CONSTANTS = struct.unpack("<4I", b"expand 32-byte k")


def derived(secret: bytes, label: bytes) -> bytes:
    extracted = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(extracted, label + b"\x01", hashlib.sha256).digest()


def rounds(state: list[int]) -> list[int]:
    def turn(a: int, b: int, c: int, d: int) -> None:
        for one, other, third, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[one] = (state[one] + state[other]) & MASK
            mixed = state[third] ^ state[one]
            state[third] = ((mixed << by) | (mixed >> (32 - by))) & MASK

    for _ in range(10):
        for first in range(4):
            turn(first, first + 4, first + 8, first + 12)
        for first in range(4):
            turn(first, (first + 1) % 4 + 4, (first + 2) % 4 + 8, (first + 3) % 4 + 12)
    return state


def hchacha20(key: bytes, nonce: bytes) -> bytes:
    state = rounds([*CONSTANTS, *struct.unpack("<8I", key), *struct.unpack("<4I", nonce)])
    return struct.pack("<8I", *state[:4], *state[12:])


def block(key: bytes, nonce: bytes, counter: int) -> bytes:
    start = [*CONSTANTS, *struct.unpack("<8I", key), counter, *struct.unpack("<3I", nonce)]
    return struct.pack("<16I", *((one + other) & MASK for one, other in zip(rounds(list(start)), start)))


def poly1305(key: bytes, text: bytes) -> bytes:
    r = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    total = 0
    for at in range(0, len(text), 16):
        total = (total + int.from_bytes(text[at : at + 16] + b"\x01", "little")) * r % ((1 << 130) - 5)
    return ((total + int.from_bytes(key[16:], "little")) & ((1 << 128) - 1)).to_bytes(16, "little")


def sealed(key: bytes, nonce: bytes, plain: bytes, bound: bytes) -> bytes:
    """Encrypts with XChaCha20-Poly1305. Returns the ciphertext followed by its tag."""
    key, nonce = hchacha20(key, nonce[:16]), bytes(4) + nonce[16:]
    stream = b"".join(block(key, nonce, 1 + at) for at in range(len(plain) // 64 + 1))
    text = bytes(one ^ other for one, other in zip(plain, stream))
    padded = b"".join(part + bytes(-len(part) % 16) for part in (bound, text))
    tag = poly1305(block(key, nonce, 0)[:32], padded + struct.pack("<QQ", len(bound), len(text)))
    return text + tag


def token(sealing_key: str, tenant: str, user: str, request: str, key_id: str = "k1", hours: int = 72) -> str:
    """Returns the token of a link that is made now. The sealing key is in base64, as in the configuration."""
    now = int(time.time() * 1_000_000)
    ends = now + hours * 3600 * 1_000_000
    plain = struct.pack(">Bqq", 1, now, ends) + uuid.UUID(request).bytes + uuid.uuid4().bytes
    plain += struct.pack(">H", len(tenant.encode())) + tenant.encode() + user.encode()
    parts = (b"holdpoint sealed 1", key_id.encode(), b"link")
    bound = b"".join(struct.pack(">Q", len(part)) + part for part in parts)
    nonce = os.urandom(24)
    key = derived(base64.b64decode(sealing_key), b"holdpoint 1 links")
    text = base64.urlsafe_b64encode(nonce + sealed(key, nonce, plain, bound)).rstrip(b"=")
    return f"{key_id}.{text.decode()}"


if __name__ == "__main__":
    print(token(*sys.argv[1:5], **({"hours": int(sys.argv[5])} if len(sys.argv) > 5 else {})))
