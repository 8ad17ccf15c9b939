"""The doctor's page in a real browser without a screen: what a reader sees of a sick and of a healthy cluster."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from clusterddp.checks.engine import judge, select
from clusterddp.checks.model import Diagnosis
from clusterddp.doctor.report_html import doctor_page
from tests.integration.cli import User
from tests.unit.doctor.test_report_html import Reader, pairs
from tests.unit.evidence_made import cluster

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.facts.dials import Pair
    from tests.lab import Lab

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
in_a_browser = pytest.mark.skipif(not BROWSER, reason="no Chromium on this machine")
WIDTH, HEIGHT = 1280, 1600
RED, QUICK, SLOW, GROUND = (0xCF, 0x22, 0x2E), (0xD3, 0xF0, 0xDC), (0x4A, 0x7F, 0xC4), (0xFF, 0xFF, 0xFF)
CELL = 20 * 20  # pixels, at least
# Nothing but our file is to be asked for; a browser that runs as root needs --no-sandbox.
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--force-color-profile=srgb",
    "--force-device-scale-factor=1", "--blink-settings=preferredColorScheme=1",
)  # fmt: skip


def seen_by_a_reader(folder: Path, count: int, ways: tuple[Pair, ...]) -> Image.Image:
    evidence = cluster(count=count)
    assert evidence.network
    evidence = replace(evidence, network=replace(evidence.network, pairs=ways))
    written = folder / "page.html"
    found = Diagnosis(evidence=evidence, results=tuple(judge(evidence, select())))
    written.write_text(doctor_page(found, "made for a test"), encoding="utf-8")
    shot = folder / "page.png"
    assert BROWSER
    words = (f"--user-data-dir={folder / 'profile'}", f"--screenshot={shot}", f"--window-size={WIDTH},{HEIGHT}")
    done = subprocess.run([BROWSER, *FLAGS, *words, written.as_uri()], capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()
    with Image.open(shot) as image:
        return image.convert("RGB")


def painted(image: Image.Image, colour: tuple[int, int, int]) -> int:
    """How many pixels have a colour."""
    colours = image.getcolors(WIDTH * HEIGHT)
    assert colours
    return {own: number for number, own in colours}.get(colour, 0)


@in_a_browser
def test_a_shut_way_is_one_red_cell_among_quiet_ones(tmp_path: Path) -> None:
    first, *rest = pairs(4)
    shut = replace(first, verdict="fail", word="timeout", rtt_ms=None)
    (tmp_path / "sick").mkdir()
    (tmp_path / "well").mkdir()
    sick = seen_by_a_reader(tmp_path / "sick", 4, (shut, *rest))
    well = seen_by_a_reader(tmp_path / "well", 4, pairs(4))
    assert sick.size == well.size == (WIDTH, HEIGHT)
    red = painted(sick, RED) - painted(well, RED)
    assert CELL <= red <= 6 * CELL
    assert painted(well, QUICK) > 11 * CELL
    assert 0 < painted(well, QUICK) - painted(sick, QUICK) < 6 * CELL


@in_a_browser
def test_the_matrix_of_32_hosts_fits_a_screen(tmp_path: Path) -> None:
    first, *rest = pairs(32)
    image = seen_by_a_reader(tmp_path, 32, (replace(first, rtt_ms=9.0), *rest))
    assert painted(image, QUICK) > 900 * CELL
    assert painted(image, SLOW) >= CELL
    edge = image.crop((WIDTH - 12, 0, WIDTH, HEIGHT))
    assert edge.getcolors(WIDTH * HEIGHT) == [(edge.width * edge.height, GROUND)], "nothing runs out of the page"


def test_the_doctor_writes_the_page(lab: Lab, tmp_path: Path) -> None:
    user = User(tmp_path)
    lab.write_inventory(user.folder / "inventory.yaml")
    done = user.run("doctor", "-i", "inventory.yaml", "--only", "network,ports", "--html", "page.html")
    assert done.code == 0, done.err
    found = Reader((user.folder / "page.html").read_text(encoding="utf-8"))
    hosts = len(lab.hosts)
    assert len(found.cells("pass")) == hosts * (hosts - 1)
    assert all(host.name in found.text for host in lab.hosts)
    assert done.notes[-1] == "wrote page.html"
