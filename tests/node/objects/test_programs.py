"""Programs: the replicated server of paper 004 (figures 5 and 6), its measurements (9 to 12), and docs/objects.md's."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

from node.errors import LocalError
from node.objects.application import PROGRAMS, application_of
from node.objects.parameters import ObjectsParameters, ProgramParameters
from node.objects.programs import OBJECTS_BITS, Setting
from node.objects.programs.figures import MOST_PLACES, Place, places_of
from node.objects.programs.replicated import REPLY
from node.registry import PROTOCOLS
from node.reliable.parameters import ReliableParameters
from node.trace import CallReport, Timed
from testbed.sim.simulation import Ending, Simulation
from testbed.spec import experiment as spec
from tests.node.objects.configurations import machine
from tests.node.objects.stage import experiment_text, perform, reports
from topologies.formats.errors import InputError

ROUNDS = 40
REPLICATED = f"members: 3, rounds: {ROUNDS}, pause: 50 ms"


def setting(networks: tuple[int, ...], *, spaces: int = 1, member: int = 0, **options: object) -> Setting:
    parameters = {"options": options}
    return Setting(
        membership=machine(member, networks, parameters=parameters).membership,
        space=0,
        spaces=spaces,
        options=ProgramParameters(**options),  # type: ignore[arg-type]
        report=lambda report: None,
        now_ns=lambda: 0,
    )


# Replicated server.


def counted(simulation: Simulation) -> tuple[list[int], dict[int, int]]:
    """Counts in the replies to the client, and at the end at each server."""
    told = [report for incarnation in simulation.incarnations for report in reports(incarnation, CallReport.COUNTED)]
    return [value for member, value in told if member == REPLY], {m: value for m, value in told if m != REPLY}


def test_figures_5_and_6_servers_on_three_machines_count_as_one() -> None:
    simulation = perform("replicated", (3, 1), options=REPLICATED)
    replies, servers = counted(simulation)
    assert replies == list(range(1, ROUNDS + 1))
    assert servers == {0: ROUNDS, 1: ROUNDS, 2: ROUNDS}
    assert all(incarnation.ending is Ending.DRAINED for incarnation in simulation.incarnations)


@pytest.mark.parametrize("crashed", [0, 1, 2])
def test_the_service_survives_the_crash_of_any_server_which_comes_back_with_the_state(crashed: int) -> None:
    fault = f"{{at: 1 s, for: 1 s, crash: {{targets: [p1/n{crashed + 1}]}}}}"
    replies, servers = counted(perform("replicated", (3, 1), options=REPLICATED, faults=fault))
    assert replies == list(range(1, ROUNDS + 1)), "nothing acknowledged is lost, nothing is counted twice"
    assert servers == {0: ROUNDS, 1: ROUNDS, 2: ROUNDS}


def test_after_a_crash_for_good_the_others_serve_within_two_periods_of_failure_detection() -> None:
    fault = "{at: 1 s, crash: {targets: [p1/n1]}}"
    simulation = perform("replicated", (3, 1), options=REPLICATED, faults=fault, duration="25 s")
    replies, servers = counted(simulation)
    assert replies == list(range(1, ROUNDS + 1))
    assert servers == {1: ROUNDS, 2: ROUNDS}
    longest_ns = max(timed(simulation)[Timed.REQUEST, 1])
    assert longest_ns <= 2 * ReliableParameters().suspect_after_ns


def test_the_same_seed_gives_the_same_records() -> None:
    fault = "{at: 1 s, for: 1 s, crash: {targets: [p1/n2]}}"
    runs = [perform("replicated", (3, 1), options=REPLICATED, faults=fault, seed=5) for _ in range(2)]
    assert [incarnation.records for incarnation in runs[0].incarnations] == [
        incarnation.records for incarnation in runs[1].incarnations
    ]


# Measurements.


def timed(simulation: Simulation) -> dict[tuple[Timed, int], list[int]]:
    """The measured ns, by method and number of objects."""
    found: dict[tuple[Timed, int], list[int]] = defaultdict(list)
    for incarnation in simulation.incarnations:
        for word, took_ns in reports(incarnation, CallReport.TIMED):
            found[Timed(word >> OBJECTS_BITS), word % (1 << OBJECTS_BITS)].append(took_ns)
    return found


@pytest.mark.parametrize(
    ("locality", "networks", "spaces"),
    [("space", (2,), 1), ("machine", (2,), 7), ("network", (7,), 1), ("networks", (3, 2, 2), 1)],
)
def test_each_way_is_measured_for_each_number_of_objects_in_each_round(
    locality: str, networks: tuple[int, ...], spaces: int
) -> None:
    options = f"members: 8, locality: {locality}, rounds: 2, size: 330 B, pause: 1 ms"
    found = timed(perform("figures", networks, spaces=spaces, options=options))
    ways = (Timed.SYNC, Timed.ASYNC, Timed.GROUP, Timed.ATOMIC)
    assert {key: len(values) for key, values in found.items()} == {(way, n): 2 for way in ways for n in range(1, 9)}


def test_what_takes_time_in_the_simulator_is_the_way() -> None:
    found = timed(perform("figures", (7,), options="members: 6, locality: network, rounds: 3, pause: 1 ms"))
    took_ns = {key: median(values) for key, values in found.items()}
    assert took_ns[Timed.SYNC, 6] == pytest.approx(6 * took_ns[Timed.SYNC, 1], rel=0.1)
    assert took_ns[Timed.ASYNC, 6] < 2 * took_ns[Timed.ASYNC, 1]
    assert took_ns[Timed.GROUP, 6] < took_ns[Timed.SYNC, 6]
    assert took_ns[Timed.GROUP, 6] <= took_ns[Timed.ATOMIC, 6]


@pytest.mark.parametrize(
    ("locality", "networks", "spaces", "expected"),
    [
        ("space", (3,), 2, [(0, 0)]),
        ("machine", (3,), 9, [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6)]),
        ("network", (4, 2), 1, [(1, 0), (2, 0), (3, 0)]),
        ("network", (9,), 1, [(member, 0) for member in range(1, 7)]),
        ("networks", (3, 3, 3, 3), 1, [(1, 0), (3, 0), (6, 0), (2, 0), (4, 0), (7, 0)]),
        ("networks", (2, 1), 1, [(1, 0), (2, 0)]),
    ],
)
def test_objects_lie_where_the_paper_has_them(
    locality: str, networks: tuple[int, ...], spaces: int, expected: list[tuple[int, int]]
) -> None:
    found = places_of(setting(networks, spaces=spaces, locality=locality))
    assert list(found) == [Place(*place) for place in expected]
    assert len(found) <= MOST_PLACES


# Errors.


@pytest.mark.parametrize(
    ("program", "networks", "options", "sentence"),
    [
        ("figures", (3,), {"locality": "machine"}, "needs another space, or machine"),
        ("figures", (1, 2), {"locality": "network"}, "needs another space, or machine"),
        ("replicated", (3,), {"members": 3}, "needs a machine beside its servers"),
        ("replicated", (3, 2), {"members": 4}, "of 4 members needs 4 machines in the first sub-network, not 3"),
        ("nothing", (3,), {}, "no program is called 'nothing'; there are load, figures, replicated"),
    ],
)
def test_a_program_that_cannot_run_is_refused_before_anything_starts(
    program: str, networks: tuple[int, ...], options: dict[str, object], sentence: str
) -> None:
    parameters = ObjectsParameters(spaces=1, program=program, options=ProgramParameters(**options))  # type: ignore[arg-type]
    with pytest.raises(LocalError, match=sentence):
        application_of(machine(0, networks), parameters)


def test_a_program_of_no_known_name_is_refused_where_the_experiment_names_it() -> None:
    text = experiment_text("replicate", (3, 1))
    with pytest.raises(InputError, match="no program is called 'replicate'; did you mean replicated") as caught:
        spec.loads(text, "x.yaml", protocols=PROTOCOLS)
    assert (caught.value.source, caught.value.line) == ("x.yaml", 4)


def test_programs_are_registered_under_their_names() -> None:
    assert {name: program.name for name, program in PROGRAMS.items()} == {name: name for name in PROGRAMS}


def test_the_program_of_the_page_runs() -> None:
    page = Path(__file__).parents[3] / "docs" / "objects.md"
    (program,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    *answers, result = done.stdout.splitlines()
    assert len(answers) == 2
    # The last call makes it 10; the list's replies were 7 and 2.
    assert result == "19"
