"""The traffic of a capture, counted in the process of the test."""

from __future__ import annotations

from analysis.capture.decode import decode_frames
from analysis.capture.source import CaptureReader, Pieces, checked_batches
from analysis.traffic.section import Measurement, Traffic
from analysis.traffic.source import DECODED, SPANS, Sums


def traffic_of(measurement: Measurement) -> Traffic:
    sums = Sums(measurement.plan, measurement.max_rows)
    for part in CaptureReader(str(measurement.inputs.capture_path), SPANS, "spans", 1).partitions():
        assert isinstance(part, Pieces)
        for piece in part.pieces:
            for buffer, frames in checked_batches(piece):
                sums.add(buffer, frames, decode_frames(buffer, frames, DECODED))
    return measurement.of(sums.table())
