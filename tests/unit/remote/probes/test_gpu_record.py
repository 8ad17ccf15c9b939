"""The script that records what a driver prints, run with a driver that is made."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from clusterddp.remote.probes import nvidia_smi_xml
from clusterddp.remote.system import nvidia_smi

ROOT = Path(__file__).parents[4]
RECORD = ROOT / "tests" / "gpu" / "record.sh"
BASE = ROOT / "tests" / "data" / "nvidia-smi" / "two-h100-550.54.15"
SMI = f"""#!/bin/sh
case "$*" in
    -L) grep ^GPU {BASE}.nvlink.txt ;;
    "--query-gpu=name --format=csv,noheader") cut -d, -f3 {BASE}.csv | sed 's/^ //' ;;
    "--query-gpu=driver_version --format=csv,noheader") cut -d, -f6 {BASE}.csv | sed 's/^ //' ;;
    *no.such.field*) echo 'Field "no.such.field" is not a valid field to query.'; exit 2 ;;
    --query-gpu=*) cat {BASE}.csv ;;
    --query-compute-apps=*) ;;
    "-q -x") sed 's#<uuid>#<serial>1234567890</serial><uuid>#' {BASE}.xml ;;
    "nvlink -s") cat {BASE}.nvlink.txt ;;
    *) exit 9 ;;
esac
"""


@pytest.fixture
def base(tmp_path: Path) -> str:
    """What the recorded files' names begin with."""
    for name, text in (("nvidia-smi", SMI), ("journalctl", "#!/bin/sh\nexit 1\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o700)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run([str(RECORD), str(tmp_path / "out")], env=env, check=True, stdout=subprocess.DEVNULL)
    return str(tmp_path / "out" / "2-nvidia-h100-80gb-hbm3-550.54.15")


def test_what_is_recorded_is_understood(base: str) -> None:
    cards = nvidia_smi_xml.parse_cards(Path(base + ".xml").read_text())
    listed = nvidia_smi.parse_gpus(Path(base + ".csv").read_text())
    assert [gpu.uuid for gpu in listed] == [card.uuid for card in cards]
    assert set(nvidia_smi_xml.parse_links(Path(base + ".nvlink.txt").read_text())) == {card.uuid for card in cards}


def test_what_fails_is_recorded_with_its_status(base: str) -> None:
    told = Path(base + ".field.txt").read_text()
    assert told.endswith("is not a valid field to query.\nexit status 2\n")


def test_what_tells_one_machine_from_another_is_taken_out(base: str) -> None:
    text = Path(base + ".xml").read_text()
    assert "1234567890" not in text
    assert "GPU-33333333" not in text


def test_it_asks_what_we_ask() -> None:
    text = RECORD.read_text()
    assert f"fields={','.join(nvidia_smi._FIELDS)}\n" in text
    assert f"app_fields={','.join(nvidia_smi._APP_FIELDS)}\n" in text
