"""The reference pages of both file formats: `python -m testbed.reference` writes them anew, a test compares."""

from __future__ import annotations

from testbed.paths import ROOT
from testbed.spec.raw import RawExperiment
from topologies.formats.reference import markdown
from topologies.load import RawTopology

_UNITS = (
    "A *quantity* carries its unit: `20 ms`, `10 Mbit/s`, `1 %`, `64 kB`, `20 frames`, `50 /s`, `50 ppm`; only 0 needs "
    "none.",
    "Where one item or a list is taken, a single item may stand without brackets.",
    "This page is made from the model that reads the files: `python -m testbed.reference` writes it anew.",
)


def pages() -> dict[str, str]:
    """File name under `docs/` and text of each page."""
    experiment = "The ideas are in [experiments.md](experiments.md) and [faults.md](faults.md); this is each key."
    topology = "The ideas are in [topologies.md](topologies.md); this is each key."
    return {
        "reference-experiment.md": markdown(RawExperiment, "Experiment files: every key", (experiment, "", *_UNITS)),
        "reference-topology.md": markdown(RawTopology, "Topology files: every key", (topology, "", *_UNITS)),
    }


def main() -> None:
    for name, text in pages().items():
        (ROOT / "docs" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
