# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Paper 001: time, clocks, and the ordering of events
#
# Statements of the paper, drawn from the newest sweeps under `runs/` (or `ORDERBED_RUNS`): `orderbed sweep
# mutex-messages`, `clocks-bound`, `clocks-start` and `lamport-anomaly`; `--world sim` needs no rights and no kernel.

# %%
import os

import matplotlib.pyplot as plt
from IPython.display import Markdown

from analysis.run import Sweep
from testbed.paths import ROOT
from testbed.run.claims import tables_of

runs = os.environ.get("ORDERBED_RUNS", "runs")

# %% [markdown]
# ## Mutual exclusion: messages for one entry
#
# A request to each, an acknowledgement from each, a release to each: 3(n-1). With the notes 5 and 6 an acknowledgement
# is left out when the same sender has sent, or will send, a later message. Ricart and Agrawala (1981) have a reply,
# which a member inside the section defers, in place of acknowledgement and release: 2(n-1).

# %%
messages = Sweep.newest("mutex-messages", runs).frame(
    n="given.members",
    algorithm="given.parameters.algorithm",
    acknowledge="given.parameters.acknowledge",
    per_entry="traffic.inner_per_message",
    overlaps="properties.mutual_exclusion.violations",
    out_of_order="properties.grant_order.violations",
    unserved="properties.service.violations",
)
figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
for (algorithm, acknowledge), table in messages.groupby(["algorithm", "acknowledge"]):
    axes.plot(table["n"], table["per_entry"], "o", label=f"{algorithm}, acknowledge: {acknowledge}")
for factor in (3, 2):
    axes.plot(messages["n"].unique(), factor * (messages["n"].unique() - 1), "--", label=f"{factor}(n - 1)")
axes.set(title="Messages for one entry", xlabel="n", ylabel="messages", ylim=(0, None))
axes.legend()
messages

# %% [markdown]
# ## Physical clocks: the bound
#
# Once settled, any two clocks differ by less than about d(2κτ + ξ). Each dot is one combination of diameter, period,
# unpredictable delay and drift; a dot above the line would contradict the theorem.

# %%
bound = Sweep.newest("clocks-bound", runs).frame(
    d="given.members - 1",
    skew_ms="clocks.skew_max_after_ns / 1000000",
    per_hop_ns="2 * given.drift_ppm * given.parameters.tau_ns / 1000000 + 2 * given.jitter_ns",
)
bound["bound_ms"] = bound["d"] * bound["per_hop_ns"] / 1e6
figure, axes = plt.subplots(figsize=(6, 5), layout="constrained")
for d, table in bound.groupby("d"):
    axes.loglog(table["bound_ms"], table["skew_ms"], "o", label=f"d = {d:g}")
ends = [bound["bound_ms"].min() / 2, bound["bound_ms"].max() * 2]
axes.plot(ends, ends, "k--", lw=1, label="the bound")
axes.set(title="Greatest difference of two clocks", xlabel="d(2κτ + ξ) (ms)", ylabel="measured (ms)")
axes.legend()
bound

# %% [markdown]
# ## Fast start
#
# The clocks start up to 2 s apart. One relayed message synchronises them within 2d(μ + ξ).

# %%
start = Sweep.newest("clocks-start", runs)
figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
for point, run in zip(start.points, start.runs, strict=True):
    series = run.summary["clocks"]["series"]
    label = ", ".join(f"{key.split('.')[-1]} = {value}" for key, value in point["variant"].items())
    axes.semilogy([one["t_s"] for one in series], [max(one["skew_ns"], 1) / 1e6 for one in series], label=label)
axes.set(title="Greatest difference of two clocks since the start", xlabel="s", ylabel="ms")
axes.legend()

# %% [markdown]
# ## Anomalous behaviour
#
# Share of the pairs of requests of different members whose later one, in real time, is ordered first. Logical clocks
# ignore messages outside the system, such as a telephone call; synchronised clocks do not.

# %%
told = Sweep.newest("lamport-anomaly", runs)
anomaly = told.frame(
    clock="given.parameters.clock",
    gap_ms="anomalies.by_gap.gap_ms",
    share="anomalies.by_gap.share",
    calls="anomalies.calls.pairs",
    opposite="anomalies.calls.opposite",
)
figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
for clock, table in anomaly.groupby("clock"):
    row = table.iloc[0]
    axes.plot(row["gap_ms"], [100 * share for share in row["share"]], "o-", label=clock)
axes.set(
    title="Requests ordered against real time",
    xlabel="at least so far apart (ms)",
    ylabel="% of pairs",
    xscale="symlog",
)
axes.legend()

# %% [markdown]
# Pairs that a telephone call connects, and those of them that were ordered the other way round. If the caller tells the
# timestamp of its request, and the callee asks for a later one, logical clocks do as well.

# %%
anomaly["timestamp told"] = [point["variant"].get("workload.1.call.tells-timestamp", False) for point in told.points]
anomaly.groupby(["clock", "timestamp told"])[["calls", "opposite"]].sum()

# %% [markdown]
# ## All statements
#
# Statements of the paper and ours, the values measured for the repository's page (docs/claims.md), and the causes where
# they differ. In a column of values, ✔ holds and ✘ does not.

# %%
Markdown(tables_of("001", ROOT / "docs/claims.md"))
