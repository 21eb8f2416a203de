"""Sweeps beyond the plain product: keys that change together, whole blocks, and many seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from node.registry import PROTOCOLS
from testbed.run.perform import Overrides, apply_overrides
from testbed.spec import experiment as spec
from testbed.spec.faults import Impair
from testbed.spec.sweeps import derived_seeds
from testbed.spec.values import Experiment
from tests.testbed.spec.test_experiment import BASE, loads
from topologies.formats.errors import InputError


def expanded(text: str) -> list[Experiment]:
    return spec.expand_sweep(loads(text), protocols=PROTOCOLS)


def test_a_sweep_is_every_combination_and_keys_that_go_together_move_together() -> None:
    """The last key changes fastest, and each run has a text that gives it again."""
    runs = expanded(
        BASE + "faults: [{at: 1 s, impair: {targets: '*', loss: 1 %}}]\n"
        "sweep:\n"
        "  faults[0].impair.loss: [2 %, 3 %]\n"
        "  workload.rate, protocol.parameters.reliable.heartbeat:\n"
        "    - [10 /s, 40 ms]\n"
        "    - [80 /s, 5 ms]\n"
    )
    found = []
    for run in runs:
        (impair,) = run.faults
        assert isinstance(impair, Impair)
        rate_per_s = next(iter(run.workloads.values())).rate_per_s
        found.append((impair.changes["loss_ratio"], rate_per_s, run.protocol.parameters))
        assert replace(loads(run.text), variant=run.variant) == run
        assert (run.sweep, run.name) == ((), "sample")
    assert found == [
        (loss, rate, {"reliable": {"heartbeat_ns": heartbeat_ns}})
        for loss in (0.02, 0.03)
        for rate, heartbeat_ns in ((10.0, 40_000_000), (80.0, 5_000_000))
    ]
    assert runs[1].variant == {
        "faults[0].impair.loss": "2 %", "workload.rate": "80 /s", "protocol.parameters.reliable.heartbeat": "5 ms",
    }  # fmt: skip


def test_topologies_and_their_numbers_of_nodes_can_be_swept() -> None:
    runs = expanded(BASE + "sweep: {topology: [one-partition, wan], seed: [1, 2]}")
    assert [(run.topology.name, loads(run.text).topology.name, loads(run.text).seed) for run in runs] == [
        (name, name, seed) for name in ("one-partition", "wan") for seed in (1, 2)
    ]
    inline = BASE.replace("one-partition", "{partitions: {p1: {nodes: 2}}}")
    runs = expanded(inline + "sweep: {topology.partitions.p1.nodes: [3, 4, 8]}")
    assert [len(run.topology) for run in runs] == [3, 4, 8]


def test_without_a_sweep_there_is_one_run() -> None:
    assert expanded(BASE) == [loads(BASE)]


def test_a_combination_that_cannot_be_is_refused_when_it_is_expanded() -> None:
    experiment = loads(
        BASE + "faults: {at: 15 s, heal: }\nimpairments: {'*': {to-node: {delay: 5 ms}}}\n"
        "sweep: {'impairments.*.to-node.delay': [5 ms, 1 ms], 'impairments.*.to-node.jitter': [1 ms, 5 ms]}"
    )
    with pytest.raises(InputError, match=r"^x\.yaml:8: impairments\.\*\.to-node: jitter must not exceed the delay"):
        spec.expand_sweep(experiment, protocols=PROTOCOLS)


def test_a_whole_protocol_can_be_swept_and_a_parameter_of_it_beside_it() -> None:
    """In any order of the file, a block is applied before changes of its parts."""
    runs = expanded(
        BASE + "sweep:\n"
        "  protocol.parameters.reliable.window: [8, 16]\n"
        "  protocol: [{name: sequencer, parameters: {reliable: {heartbeat: 9 ms}}}, {name: lamport}]\n"
    )
    assert [(run.protocol.name, run.protocol.parameters) for run in runs] == [
        (name, {"reliable": {**more, "window": window}})
        for window in (8, 16)
        for name, more in (("sequencer", {"heartbeat_ns": 9_000_000}), ("lamport", {}))
    ]


def test_a_row_may_hold_a_whole_block() -> None:
    runs = expanded(
        BASE + "sweep:\n  protocol, workload.rate:\n    - [{name: lamport}, 1 /s]\n    - [{name: sequencer}, 2 /s]\n"
    )
    assert [(run.protocol.name, next(iter(run.workloads.values())).rate_per_s) for run in runs] == [
        ("lamport", 1.0),
        ("sequencer", 2.0),
    ]


def test_each_combination_is_run_with_each_seed() -> None:
    runs = expanded(BASE + "sweep: {seeds: 3, drain: [1 s, 2 s]}")
    seeds = derived_seeds(1, 3)
    assert [(run.drain_ns, run.seed) for run in runs] == [(s * 10**9, seed) for s in (1, 2) for seed in seeds]
    assert runs[0].variant == {"drain": "1 s", "seed": seeds[0]}
    assert loads(runs[0].text).seed == seeds[0]


def test_seeds_are_different_and_more_of_them_begin_with_the_same() -> None:
    assert len(set(derived_seeds(1, 1000))) == 1000
    assert derived_seeds(1, 1000)[:10] == derived_seeds(1, 10)
    assert not set(derived_seeds(1, 100)) & set(derived_seeds(2, 100))


def test_the_seeds_follow_the_wish_of_the_command_line() -> None:
    overrides = Overrides(seed=7, runs=Path("runs"))
    runs = spec.expand_sweep(apply_overrides(loads(BASE + "sweep: {seeds: 2}"), overrides), protocols=PROTOCOLS)
    assert [apply_overrides(run, overrides).seed for run in runs] == list(derived_seeds(7, 2))


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        ("{drain: 3 s}", "sweep.drain: expected a list of values, got '3 s'"),
        ("{'drain, seed': [1 s]}", "sweep.drain, seed[0]: expected a row of 2 values, for drain, seed, got '1 s'"),
        ("{'drain, seed': [[1 s, 1], [2 s]]}",
         "sweep.drain, seed[1]: expected a row of 2 values, for drain, seed, got 1 values"),
        ("{'drain, drain': [[1 s, 1 s]]}", "sweep.drain, drain: drain is swept twice"),
        ("{'drain, seed': [[1 s, 1]], drain: [1 s]}", "sweep.drain: drain is swept twice"),
        ("{'drain,': [[1 s, 1]]}",
         "sweep.drain,: expected the path of a key, such as workload.rate or faults.0.impair.loss"),
        ("{'drain, name': [[1 s, b]]}", "sweep.drain, name: name cannot be swept"),
        ("{seeds: 0}", "sweep.seeds: expected a whole number from 1 to 1000, got 0"),
        ("{seeds: 1001}", "sweep.seeds: expected a whole number from 1 to 1000, got 1001"),
        ("{seeds: [1, 2]}", "sweep.seeds: expected a whole number from 1 to 1000, got a list"),
        ("{seeds: true}", "sweep.seeds: expected a whole number from 1 to 1000, got true"),
        ("{seeds: 2, 'drain, seed': [[1 s, 1]]}",
         "sweep.seeds: expected either seed, with a list of seeds, or seeds, with a number"),
        ("{protocol: [{name: lamprt}]}", "protocol.name: no protocol is called 'lamprt'; did you mean lamport?"),
        ("{seeds: 1000, drain: [1 s, 2 s, 3 s, 4 s, 5 s, 6 s, 7 s, 8 s, 9 s, 10 s, 11 s]}",
         "sweep: expected at most 10000 runs in all"),
    ],
)  # fmt: skip
def test_what_cannot_be_swept_is_refused(sweep: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        loads(BASE + f"sweep: {sweep}\n")
    assert str(caught.value) == f"x.yaml:7: {sentence}"
