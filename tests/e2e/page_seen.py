"""The status page as a browser shows it: screenshots by headless Chromium, on a desktop and a phone, light and dark."""
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import zlib

from kit import ROOT, check
from page import Page

BROWSERS = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell"
SIZES = {"desktop": (1300, 1400), "phone": (390, 2400)}
PAGES = {"light": (255, 255, 255), "dark": (0x16, 0x17, 0x1b)}  # board_page.c: --page
COLOURS = {"compute": (0x00, 0x72, 0xb2), "reduce": (0xcc, 0x79, 0xa7), "other idle": (0x99, 0x99, 0x99)}


def pixels(path):
    """Width, height and rows of (r, g, b) bytes of a PNG of 8-bit RGB or RGBA without interlacing."""
    data, at, packed = path.read_bytes(), 8, b""
    check(data[:8] == b"\x89PNG\r\n\x1a\n", f"{path}: no PNG")
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", body)
        packed += body if kind == b"IDAT" else b""
        at += 12 + size
    check(depth == 8 and colour in (2, 6) and interlace == 0, f"{path}: depth {depth}, colour {colour}")
    step = 3 if colour == 2 else 4
    raw, rows, before = zlib.decompress(packed), [], bytearray(width * step)
    for y in range(height):
        begin = y * (width * step + 1)
        row = bytearray(raw[begin + 1:begin + 1 + width * step])
        unfilter(raw[begin], row, before, step)
        rows.append(row)
        before = row
    return width, height, step, rows


def unfilter(kind, row, before, step):
    """The five filters of PNG, in place."""
    if kind == 2:
        row[:] = bytes((a + b) & 255 for a, b in zip(row, before))
    elif kind:
        for i in range(len(row)):
            left, up, corner = row[i - step] if i >= step else 0, before[i], before[i - step] if i >= step else 0
            guess = min((abs(up - corner), 0, left), (abs(left - corner), 1, up), (abs(left + up - 2 * corner), 2, corner))[2]
            row[i] = (row[i] + {1: left, 3: (left + up) // 2, 4: guess}[kind]) & 255


def screenshot(program, url, size, dark, path):
    subprocess.run([program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-dev-shm-usage",
                    f"--user-data-dir={ROOT / 'browser'}", f"--window-size={size[0]},{size[1]}",
                    f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--screenshot={path}", url],
                   check=True, timeout=240, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def browser():
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def scenario_page_seen():
    program = browser()
    if not program:
        print(f"page_seen: none of {', '.join(BROWSERS)} is installed: no screenshots")
        sys.exit(77)
    page = Page("page", **{"job.name": "two-offices", "pipeline.stages": 3, "link.rate_mbps": 2, "link.rtt_ms": 20})
    if page.refusal and "without libmicrohttpd" in page.refusal[1]:
        print("page_seen: built without libmicrohttpd")
        sys.exit(77)
    check(not page.refusal, page.refusal)
    kept = os.environ.get("AQ_SCREENSHOTS")  # a folder, for people: all four are made then
    wanted = [(name, scheme) for name in SIZES for scheme in PAGES] if kept else [("desktop", "light"), ("phone", "dark")]
    try:
        page.until("steps and an evaluation", lambda said: said["step"] > 60 and said["heldout_loss"])
        for name, scheme in wanted:
            path, colour = ROOT / f"{name}-{scheme}.png", PAGES[scheme]
            screenshot(program, page.url.geturl(), SIZES[name], scheme == "dark", path)
            width, height, step, rows = pixels(path)
            check((width, height) == SIZES[name], f"{path}: {width} x {height}")
            edges = {tuple(row[x:x + 3]) for row in rows for x in (0, (width - 1) * step)}
            check(edges == {colour}, f"{path}: something reaches over the page's border: {len(edges)} colours there")
            counts = {part: sum(bytes(row).count(bytes(rgb)) for row in rows) for part, rgb in COLOURS.items()}
            check(counts["compute"] > 100 and counts["other idle"] > 100, f"{path}: no bars: {counts}")
            check(counts["reduce"] < 400, f"{path}: a job without replicas shows reductions beyond the key: {counts}")
            if kept:
                shutil.copy(path, pathlib.Path(kept) / path.name)
        page.close()
    finally:
        page.process.kill()
