"""The collector's command line: each mistake gives one sentence and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from collector.__main__ import main

GOOD = {
    "--output": "capture.pcapng",
    "--ports": '[{"ifindex": 100000, "name": "p1/n1"}]',
    "--ifindex-base": "100000",
    "--comment": "{}",
}


def _words(changes: dict[str, str | None]) -> list[str]:
    merged = {**GOOD, **changes}
    return [word for name, value in merged.items() if value is not None for word in (name, value)]


def _ports(*ports: str) -> dict[str, str | None]:
    return {"--ports": f"[{', '.join(ports)}]"}


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"--output": None}, "the following arguments are required: --output; see python -m collector --help"),
    ({"--frobnicate": "1"}, "unrecognized arguments: --frobnicate 1"),
    ({"--ports": "[{"}, "--ports is not JSON"),
    ({"--ports": "{}"}, "--ports must be a JSON list"),
    (_ports(), "there is no port to capture: name at least one"),
    (_ports("5"), "--ports: 5 needs ifindex and name"),
    (_ports('{"name": "a"}'), "needs ifindex and name"),
    (_ports('{"ifindex": "1", "name": "a"}'), "needs a number as ifindex"),
    (_ports('{"ifindex": 1, "name": ""}'), "needs a number as ifindex, a name"),
    (_ports('{"ifindex": 1, "name": "a", "mac": "02:0b"}'), "and a MAC if any"),
    (_ports('{"ifindex": 1, "name": "a", "mac": 7}'), "and a MAC if any"),
    ({"--ports": "@/nowhere/ports.json"}, "/nowhere/ports.json cannot be read: No such file or directory"),
    (_ports('{"ifindex": 5, "name": "a"}'), "port 5 lies below the interface index base 100000"),
    (_ports('{"ifindex": 100000, "name": "a"}', '{"ifindex": 100000, "name": "b"}'),
     "two ports have the same interface index"),
    ({"--comment": "hello"}, "--comment is not JSON"),
    ({"--comment": "[1]"}, "--comment must be a JSON object"),
    ({"--comment": "[" * 100_000}, "--comment is not JSON"),
    ({"--snaplen": "10"}, "--snaplen must lie between 78 and 262144"),
    ({"--snaplen": "x"}, "argument --snaplen: invalid int value: 'x'"),
    ({"--ring-blocks": "1"}, "--ring-blocks must be at least 2"),
])  # fmt: skip
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
