"""Makes the fixtures of cached row formats: f32 rows and the bytes that the published definitions give.

    make_row_fixtures.py OUTPUT_DIRECTORY      needs torch, whose e4m3 conversion is the one compared with

rows.bin holds, little-endian, one after the other:
    u32 n; n KV rows:      f32 [512]; nope plane u8 [512]; rope plane u8 [128]
    u32 n; n indexer rows: f32 [128]; fp8 codes u8 [128]; f32 scale; fp4 codes u8 [64]; fp4 scales u8 [4]
"""
import math
import pathlib
import sys
from fractions import Fraction

import numpy as np
import torch

E2M1 = [Fraction(x) for x in ("0", "1/2", "1", "3/2", "2", "3", "4", "6")]


def exponent(least):
    """Exponent of the least power of two that is >= least, exactly."""
    e = math.frexp(float(least))[1] - 2
    while Fraction(2) ** e < least:
        e += 1
    return e


def amax(xs):
    return Fraction(float(np.abs(xs).max()))


def e4m3(xs, e):
    q = torch.from_numpy(xs) * torch.tensor(2.0, dtype=torch.float64).pow(-e).float()
    return q.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()


def e2m1(x, e):
    a = min(abs(Fraction(float(x))) / Fraction(2) ** e, Fraction(6))
    code = min(range(8), key=lambda c: (abs(E2M1[c] - a), c % 2))
    return code | (8 if math.copysign(1, x) < 0 else 0)


def kv(row):
    nope = bytearray(512)
    for g in range(7):
        xs = row[64 * g:64 * g + 64]
        e = exponent(max(amax(xs) / 448, Fraction(float(np.float32(1e-4)))))
        nope[64 * g:64 * g + 64] = e4m3(xs, e).tobytes()
        nope[448 + 2 * g:450 + 2 * g] = bytes([e + 127] * 2)
    rope = torch.from_numpy(row[448:]).to(torch.bfloat16).view(torch.int16).numpy()
    return row.tobytes() + bytes(nope) + rope.astype("<i2").tobytes()


def index(row):
    e = exponent(max(amax(row), Fraction(float(np.float32(1e-4)))) / 448)
    fp8 = e4m3(row, e).tobytes() + np.float32(2.0 ** e).tobytes()
    codes, scales = [], bytearray()
    for g in range(4):
        xs = row[32 * g:32 * g + 32]
        e = exponent(max(amax(xs), 6 * Fraction(2) ** -126) / 6)
        codes += [e2m1(x, e) for x in xs]
        scales.append(e + 127)
    packed = bytes(codes[i] | codes[i + 1] << 4 for i in range(0, 128, 2))
    return row.tobytes() + fp8 + packed + bytes(scales)


def rows(width):
    g = np.random.default_rng(3)
    normal = lambda k: (g.standard_normal(width) * k).astype(np.float32)
    yield from (normal(k) for k in (1, 30, 1e-3, 1e-6, 3e4))
    yield np.zeros(width, np.float32)
    yield -np.zeros(width, np.float32)
    # Magnitudes from subnormal to saturated under one scale, signs in turn.
    yield np.float32(448) * np.float32(2) ** -np.linspace(0, 20, width).astype(np.float32) * np.where(np.arange(width) % 2, -1, 1).astype(np.float32)
    # Ties of every binade: odd halves of the units of e4m3 and e2m1.
    ties = np.array([s * (m + 0.5) * 2.0 ** e for e in range(-9, 6) for m in range(8) for s in (1, -1)], np.float32)
    ties = np.resize(ties, width)
    ties[::64] = 448
    yield ties
    small = np.resize(np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -5, 6, 5.5], np.float32), width)
    yield small
    # The largest magnitude at a power of two times 448 and 6, and its neighbours.
    for top in (448, 6):
        for step in (-1, 0, 1):
            row = normal(0.1)
            row[::32] = np.float32(top * 4)
            if step:
                row[::32] = np.nextafter(row[::32], np.float32(step * np.inf))
            yield row
    yield np.where(np.arange(width) == 5, np.float32(3e38), normal(1))
    yield np.full(width, np.float32(1e-40))


def main():
    out = b""
    for width, encode in ((512, kv), (128, index)):
        made = [encode(row.astype(np.float32)) for row in rows(width)]
        out += np.uint32(len(made)).tobytes() + b"".join(made)
    (pathlib.Path(sys.argv[1]) / "rows.bin").write_bytes(out)


if __name__ == "__main__":
    main()
