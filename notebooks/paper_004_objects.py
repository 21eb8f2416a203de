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
# # Paper 004: calls of objects, one by one and as a group
#
# Figures 9 to 12, redrawn from the newest sweeps under `runs/` (or `ORDERBED_RUNS`), measured curves over the paper's
# statements; then results beyond the paper. `orderbed sweep objects-near` and `orderbed sweep objects-far` make the
# first (on real wires), and so on. A figure without its sweep names the missing command.
#
# A client calls 1 to 30 objects and waits for all replies. Point to point, one after the other (synchronous) or all at
# once (asynchronous); as a group, without or with atomicity. The objects are in the client's address space, in six
# address spaces of its machine, on six machines of its sub-network, or on six machines of three sub-networks.

# %%
import os

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Markdown

from analysis.metrics.estimate import protocol_curves
from analysis.run import Sweep
from testbed.paths import ROOT
from testbed.run.claims import tables_of

runs = os.environ.get("ORDERBED_RUNS", "runs")
WAYS = {
    "sync": "point to point, synchronous",
    "async": "point to point, asynchronous",
    "group": "group",
    "atomic": "group, atomic",
}
COLOURS = {"sync": "C7", "async": "C0", "group": "C2", "atomic": "C3"}
FIGURES = {
    "space": "Figure 9: one address space",
    "machine": "Figure 10: one machine",
    "network": "Figure 11: one sub-network",
    "networks": "Figure 12: three sub-networks",
}
FURTHER = "networks, round trip 4 ms"

# %% [markdown]
# ## Figures 9 to 12
#
# The paper: a group call takes as long as asynchronous calls to each object, or less; in a sub-network that is so from
# about ten objects on, because fewer messages pass between processes. Atomicity costs 10 % on average and 40 % at most.
# Three sub-networks cost some tens of per cent more than one.

# %%
COLUMNS = {"locality": "given.parameters.options.locality", "timed": "calls.timed", "verdict": "verdict"}
swept = pd.concat([Sweep.newest(name, runs).frame(**COLUMNS) for name in ("objects-near", "objects-far")])
swept["locality"] = swept["locality"].mask(swept["locality"].duplicated(), FURTHER)
print("verdicts:", dict(swept["verdict"].value_counts()), "of", len(swept), "runs")
times = pd.concat([pd.DataFrame(list(row["timed"])).assign(locality=row["locality"]) for _, row in swept.iterrows()])
figure, panels = plt.subplots(2, 2, figsize=(11, 8), layout="constrained", sharex=True)
for axes, (locality, title) in zip(panels.flat, FIGURES.items(), strict=True):
    for way, name in WAYS.items():
        part = times[(times["locality"] == locality) & (times["kind"] == way)].sort_values("objects")
        axes.plot(part["objects"], part["median_ms"], color=COLOURS[way], label=name, marker=".", markersize=3)
    axes.set(title=title, ylabel="ms until all replies (median)", ylim=(0, None))
    axes.set_yscale("symlog", linthresh=1)
panels[1, 0].set_xlabel("objects")
panels[1, 1].set_xlabel("objects")
panels[0, 0].legend()

# %% [markdown]
# The same as ratios: a group call over asynchronous calls, and an atomic call over one that is not. Below the line
# the group call is faster. The paper's round trip between sub-networks is 3 to 5 ms; in figure 12 above it is 2 ms.

# %%
wide = times.pivot_table(index=["locality", "objects"], columns="kind", values="median_ms")
ratios = pd.DataFrame(
    {"group over asynchronous": wide["group"] / wide["async"], "atomic over group": wide["atomic"] / wide["group"]}
)
figure, panels = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", sharex=True)
for axes, (title, bound) in zip(
    panels, {"group over asynchronous": 1.0, "atomic over group": 1.4}.items(), strict=True
):
    for locality in swept["locality"]:
        part = ratios.xs(locality)[title]
        axes.plot(part.index, part, label=FIGURES.get(locality, locality).rpartition(": ")[2])
    axes.axhline(bound, color="black", linestyle=":", label=f"paper: at most {bound}")
    axes.set(title=title, xlabel="objects", ylim=(0, None))
    axes.legend()
ratios[ratios.index.get_level_values("objects") >= 10].groupby("locality").mean().reindex(swept["locality"])

# %% [markdown]
# ## Datagrams of the hierarchy
#
# Twelve machines in three sub-networks; calls of up to four objects on one machine, in one sub-network, or anywhere.
# For comparison: as many messages to all twelve in one total order, by a sequencer (paper 002) and by Amoeba's
# broadcast. The lower the manager that covers a group, the fewer datagrams a call takes; the difference is greatest
# where one datagram reaches only one machine.

# %%
sent = Sweep.newest("objects-messages", runs).frame(
    protocol="given.protocol",
    dissemination="given.dissemination",
    parameters="given.parameters",
    datagrams="load.datagrams / load.submitted",
)
HEIGHTS = {"machine_weight": "one machine", "network_weight": "one sub-network", "networks_weight": "anywhere"}
sent["what"] = [
    next((name for key, name in HEIGHTS.items() if row["parameters"]["load"][key]), "")
    if row["protocol"] == "objects"
    else f"{row['protocol']}, all"
    for _, row in sent.iterrows()
]
table = sent.pivot_table(index="what", columns="dissemination", values="datagrams", sort=False)
figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
table.plot.barh(ax=axes, color=["C0", "C1"])
axes.set(title="Datagrams for a call", xlabel="datagrams, everything counted", ylabel="")
table.round(1)

# %% [markdown]
# ## Overrun
#
# The paper does not say when receivers' buffers overrun, nor the cost. Here every machine's switch port has a queue of
# 10 frames that drains at 500 kbit/s, and the rate of calls rises until it does not keep up.

# %%
overrun = Sweep.newest("objects-overrun", runs).frame(
    protocol="given.protocol",
    rate="given.rate_per_s",
    latency="latency.mean_ms",
    lost="load.messages_by_kind.RELIABLE_NACK / load.submitted",
    verdict="verdict",
)
NAMES = {"objects": "object groups", "amoeba": "one total order (Amoeba)"}
PROTOCOLS = {"colours": {"objects": "C2", "amoeba": "C4"}, "names": NAMES}
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
protocol_curves(left, overrun, "latency", "rate", **PROTOCOLS)
left.set(title="Until an object has its call", xlabel="calls per second (of all)", ylabel="ms (mean)", yscale="log")
protocol_curves(right, overrun, "lost", "rate", **PROTOCOLS)
right.set(title="Questions for what was lost", xlabel="calls per second (of all)", ylabel="for a call", ylim=(0, None))
for axes in (left, right):
    axes.legend()

# %% [markdown]
# ## All statements
#
# Statements of the paper and ours, the values measured for the repository's page (docs/claims.md), and the causes where
# they differ. In a column of values, ✔ holds and ✘ does not.

# %%
Markdown(tables_of("004", ROOT / "docs/claims.md"))
