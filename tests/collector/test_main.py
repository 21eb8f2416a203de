"""The collector's command line: each mistake gives one sentence and exit code 2, `info` tells what a file holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from collector.__main__ import main
from tests.collector.captures import interface, packet, pcap, pcapng, section, traffic

GOOD = {
    "--output": "capture.pcapng",
    "--ports": '[{"ifindex": 100000, "name": "p1/n1"}]',
    "--ifindex-base": "100000",
    "--comment": "{}",
}


def _words(changes: dict[str, str | None]) -> list[str]:
    merged = {**GOOD, **changes}
    return [word for name, value in merged.items() if value is not None for word in (name, value)]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"--output": None}, "the following arguments are required: --output; see python -m collector --help"),
        ({"--frobnicate": "1"}, "unrecognized arguments: --frobnicate 1"),
        ({"--ports": "[{"}, "--ports is not JSON"),
        ({"--ports": "{}"}, "--ports must be a JSON list"),
        ({"--ports": "[]"}, "there is no port to capture: name at least one"),
        ({"--ports": "[5]"}, "--ports: 5 needs ifindex and name"),
        ({"--ports": '[{"name": "a"}]'}, "needs ifindex and name"),
        ({"--ports": '[{"ifindex": "1", "name": "a"}]'}, "needs a number as ifindex"),
        ({"--ports": '[{"ifindex": 1, "name": ""}]'}, "needs a number as ifindex, a name"),
        ({"--ports": '[{"ifindex": 1, "name": "a", "mac": "02:0b"}]'}, "and a MAC if any"),
        ({"--ports": '[{"ifindex": 1, "name": "a", "mac": 7}]'}, "and a MAC if any"),
        ({"--ports": "@/nowhere/ports.json"}, "/nowhere/ports.json cannot be read: No such file or directory"),
        ({"--ports": '[{"ifindex": 5, "name": "a"}]'}, "port 5 lies below the interface index base 100000"),
        (
            {"--ports": '[{"ifindex": 100000, "name": "a"}, {"ifindex": 100000, "name": "b"}]'},
            "two ports have the same interface index",
        ),
        ({"--comment": "hello"}, "--comment is not JSON"),
        ({"--comment": "[1]"}, "--comment must be a JSON object"),
        ({"--comment": "[" * 100_000}, "--comment is not JSON"),
        ({"--snaplen": "10"}, "--snaplen must lie between 78 and 262144"),
        ({"--snaplen": "x"}, "argument --snaplen: invalid int value: 'x'"),
        ({"--ring-blocks": "1"}, "--ring-blocks must be at least 2"),
    ],
)
def test_wrong_use(changes: dict[str, str | None], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_words(changes)) == 2
    event = json.loads(capsys.readouterr().out)
    assert event["event"] == "error"
    assert sentence in event["message"]
    assert "\n" not in event["message"]


def test_ports_from_a_file_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ports = tmp_path / "ports.json"
    ports.write_text('[{"ifindex": 5, "name": "a"}]')
    assert main(_words({"--ports": f"@{ports}"})) == 2
    assert "port 5 lies below" in capsys.readouterr().out


def test_info(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pcapng"
    path.write_bytes(pcapng(traffic(31)))
    assert main(["info", str(path)]) == 0
    text = capsys.readouterr().out
    assert "format      pcapng" in text
    assert 'comment     {"run": "test"}' in text
    assert "frames      31, " in text
    assert "first       2023-11-14 22:13:20.123456789 UTC" in text
    assert "span        0.000030000 s" in text
    assert "port        p1/n1: 16 inbound" in text
    assert "port        p1/n2: 15 outbound" in text
    assert "dropped     not stated" in text
    assert "problem     none" in text


def test_info_of_a_plain_pcap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(traffic(3)))
    assert main(["info", str(path)]) == 0
    assert "port        a: 3 unknown" in capsys.readouterr().out


def test_info_of_a_cut_off_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = pcapng(traffic(31))
    path = tmp_path / "a.pcapng"
    path.write_bytes(whole[:-1])
    assert main(["info", str(path)]) == 1
    last = len(whole) - len(pcapng(traffic(31))[len(pcapng(traffic(30))) :])
    assert f"problem     {path}: cut off at byte {last} after 30 whole frames" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, "No such file or directory"),
        (b"", "is empty; a capture begins with a section header"),
        (b"GIF89a", "is neither pcapng nor pcap (it begins with 47494638)"),
    ],
)
def test_info_of_what_is_no_capture(
    tmp_path: Path, data: bytes | None, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.pcapng"
    if data is not None:
        path.write_bytes(data)
    assert main(["info", str(path)]) == 2
    assert capsys.readouterr().err.strip() == f"{path}: {sentence}"


def test_info_lets_no_control_character_through_and_takes_any_date(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.pcapng"
    head = section(comment="\x1b[2J") + interface(name="evil\x07name", resolution=0)
    path.write_bytes(head + packet(b"x" * 20, 2**64 - 1))
    assert main(["info", str(path)]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "first       1969-12-31" in text
