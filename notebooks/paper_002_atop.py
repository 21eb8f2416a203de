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
# # Paper 002: ATOP and ATOP/MBS, a total order that follows the members' rates
#
# Figures 4 to 6, redrawn from the newest sweeps under `runs/` (or `ORDERBED_RUNS`), measured curves over the paper's
# statements; then results beyond the paper. Each sweep comes from one experiment: `orderbed sweep atop-figures
# --spark`, and so on. They are simulated, many seeds each; bars are 95 % intervals of the mean. `atop-wire` is the same
# on real wires. A figure without its sweep names the missing command.

# %%
import os

import matplotlib.pyplot as plt
from IPython.display import Markdown

from analysis.metrics.estimate import protocol_curves
from analysis.run import Sweep
from testbed.paths import ROOT
from testbed.run.claims import tables_of

runs = os.environ.get("ORDERBED_RUNS", "runs")
COLOURS = {"sequencer": "C2", "allack": "C3", "atop": "C0", "atop_mbs": "C1"}
NAMES = {"sequencer": "Sequencer", "allack": "All-Ack", "atop": "ATOP", "atop_mbs": "ATOP/MBS"}
STYLE = {"colours": COLOURS, "names": NAMES}
MEASURES = {
    "protocol": "given.protocol",
    "dummies": "load.dummy_rate",
    "delay": "latency.normalised_mean",
    "variance": "latency.variance_over_mean",
}


# %% [markdown]
# ## The runs
#
# Three buses of ten members each, frames of 512 bytes, every copy sent separately, 10 % of the members in a rate change
# of up to 10 s and 40 %. Load is the share of a bus taken by frames with data: 0.05 to 0.4. The paper's mean
# inter-arrival time is that of one sender here. ATOP's sub-window is 25 of them (as in the paper), that of ATOP/MBS 8.

# %%
figures = Sweep.newest("atop-figures", runs).frame(**MEASURES, load="given.rate_per_s / 150", verdict="verdict")
print("verdicts:", dict(figures["verdict"].value_counts()), "of", len(figures), "runs")
figures.groupby(["protocol", "load"])[["dummies", "delay", "variance"]].mean()

# %% [markdown]
# ## Figure 4: dummies per message
#
# The paper: about 0.0165 with ATOP at every load, about 0 with ATOP/MBS.

# %%
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
protocol_curves(axes, figures, "dummies", "load", **STYLE)
axes.axhline(0.0165, color="C0", linestyle=":", label="paper: ATOP 0.0165")
axes.axhline(0, color="C1", linestyle=":", label="paper: ATOP/MBS 0")
axes.set(title="Figure 4: dummy rate", xlabel="load of a bus", ylabel="dummies per message", ylim=(-0.001, None))
axes.legend()

# %% [markdown]
# ## Figure 5: delay
#
# From the request to the delivery at the others, over the mean time between two messages of the whole group (thirty
# times that is the time between two of one sender). The paper: lower with ATOP/MBS up to load 0.2 (shaded), about equal
# or higher from 0.3 on, and rising with the load, because the buses fill. Here the order waits for hundreds of
# messages, and the buses take a small part of one: see the delay of the sequencer below.

# %%
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
protocol_curves(axes, figures, "delay", "load", **STYLE)
axes.axvspan(0, 0.2, color="C1", alpha=0.08, label="paper: ATOP/MBS lower")
axes.set(title="Figure 5: normalised delay", xlabel="load of a bus", ylabel="inter-arrival times of the group")
axes.set(xlim=(0, 0.45), ylim=(0, None))
axes.legend()

# %% [markdown]
# ## Figure 6: variance of the delay over its mean
#
# The paper: large at low load and falling, lower with ATOP/MBS at low load, no difference at 0.3. In milliseconds it
# falls with the time between messages; in units of that time it does not (right).

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
protocol_curves(left, figures, "variance", "load", **STYLE)
left.axvspan(0, 0.2, color="C1", alpha=0.08, label="paper: ATOP/MBS lower")
left.set(title="Figure 6: variance over mean", xlabel="load of a bus", ylabel="ms", yscale="log", xlim=(0, 0.45))
figures["scaled"] = figures["variance"] * figures["load"] * 0.15
protocol_curves(right, figures, "scaled", "load", **STYLE)
right.set(title="the same, in inter-arrival times of the group", xlabel="load of a bus", xlim=(0, 0.45), ylim=(0, None))

# %% [markdown]
# ## On real wires
#
# The same at load 0.4, once, thirty processes on emulated buses.

# %%
wire = Sweep.newest("atop-wire", runs).frame(
    **MEASURES, world="given.world", server="load.server_share", busiest_bus="load.lan_load", verdict="verdict"
)
wire.set_index("protocol")

# %% [markdown]
# ## The sub-window
#
# The paper's statement (2.2.5): a short sub-window keeps the broker busy, a long one adjusts less.

# %%
broker = " + ".join(f"load.messages_by_kind.MBS_{kind}" for kind in ("OFFER", "WISH", "GRANT"))
windows = Sweep.newest("atop-subwindow", runs).frame(
    **MEASURES,
    intervals="given.parameters.sub_window_ns * given.rate_per_s / given.members / 1000000000",
    broker=f"({broker}) / load.submitted",
)
figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
for place, column, title in (
    (axes[0], "dummies", "dummies per message"),
    (axes[1], "broker", "messages to and from the broker, per message"),
    (axes[2], "delay", "delay (inter-arrival times of the group)"),
):
    protocol_curves(place, windows, column, "intervals", **STYLE)
    place.set(title=title, xlabel="sub-window (inter-arrival times of a sender)", xscale="log", ylim=(0, None))

# %% [markdown]
# ## Dummies against delay
#
# A member for which others wait sends a dummy after `dummy_after`. Each point is one value of it; left and low is good.
# A dummy fills all draws up to what is undelivered, or one draw as in the paper (`ahead: false`, dashed). The sequencer
# sends no dummies and waits for no member, but its server handles every message twice.

# %%
patience = Sweep.newest("atop-patience", runs).frame(
    **MEASURES,
    after="given.parameters.dummy_after_ns",
    null_after="given.parameters.null_after_ns",
    sub_window="given.parameters.sub_window_ns / 1000000000",
    ahead="given.parameters.ahead",
    server="load.server_share",
)
figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
settings = patience.fillna({"after": patience["null_after"], "sub_window": 0}).fillna({"after": 0})
settings["fills"] = settings["ahead"].map({False: ", one draw"}).fillna("")
for (protocol, sub_window, fills), part in settings.groupby(["protocol", "sub_window", "fills"]):
    points = part.groupby("after")[["dummies", "delay"]].mean()
    name = NAMES[protocol] + (f", sbT {sub_window:g} s" if sub_window else "") + fills
    axes.plot(points["dummies"], points["delay"], "s--" if fills else "o-", color=COLOURS[protocol], label=name)
axes.set(title="Dummies against delay", xlabel="dummies per message", ylabel="inter-arrival times of the group")
axes.set_xscale("symlog", linthresh=0.01)
axes.set_yscale("log")
axes.legend()
print("busiest member over the mean member:", patience.groupby("protocol")["server"].mean().round(2).to_dict())

# %% [markdown]
# ## Random draws, or smooth ones
#
# Random draws deviate from the shares by the square root of their number. A deterministic schedule does not.

# %%
draws = Sweep.newest("atop-draws", runs).frame(**MEASURES, draws="given.parameters.draws")
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
protocol_curves(axes, draws, "delay", "draws", form="o", **STYLE)
axes.set(title="Delay", ylabel="inter-arrival times of the group", ylim=(0, None))

# %% [markdown]
# ## The drift of a lottery
#
# The turns that draws give a member and the messages that it has drift apart as a random walk does, until the next
# distribution begins. With a distribution that stays (T of 100 s, threshold 10 %) dummies and delay grow with the
# length of a run; the changes of rate that the paper has make no difference. A distribution that follows the rates (T
# of 25 s, threshold 0) has less delay than the broker.

# %%
surface = Sweep.newest("atop-surface", runs).frame(
    **MEASURES,
    seconds="given.duration_ns / 1000000000",
    window="given.parameters.window_ns / 1000000000",
)
steady = surface[surface["seconds"] != 250]  # the others have a sudden step of rate
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
for (protocol, window), part in steady.groupby(["protocol", "window"]):
    means = part.groupby("seconds")[["dummies", "delay"]].mean()
    for place, column in ((left, "dummies"), (right, "delay")):
        place.plot(means.index, means[column], "o-", label=f"{NAMES[protocol]}, T {window:g} s")
left.set(title="Dummies per message", xlabel="length of the run (s)", ylim=(0, None))
right.set(title="Delay (inter-arrival times of the group)", xlabel="length of the run (s)", ylim=(0, None))
right.legend()

# %% [markdown]
# ## T and its threshold
#
# The lottery drifts until the next distribution begins, so a short T shortens the delay. A threshold keeps
# distributions from being published.

# %%
rates = Sweep.newest("atop-window", runs).frame(
    **MEASURES,
    window="given.parameters.window_ns / 1000000000",
    threshold="given.parameters.threshold",
)
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
for (protocol, threshold), part in rates.groupby(["protocol", "threshold"]):
    means = part.groupby("window")[["dummies", "delay"]].mean()
    name = f"{NAMES[protocol]}, {threshold / 10:g} %"
    for place, column in ((left, "dummies"), (right, "delay")):
        place.plot(means.index, means[column], "o-", color=COLOURS[protocol], alpha=1 - threshold / 150, label=name)
left.set(title="Dummies per message", xlabel="T (s)", xscale="log", ylim=(0, None))
right.set(title="Delay (inter-arrival times of the group)", xlabel="T (s)", xscale="log", ylim=(0, None))
right.legend(title="threshold")

# %% [markdown]
# ## Leftovers, size, skew, fan-out

# %%
leftovers = Sweep.newest("atop-leftovers", runs).frame(**MEASURES, dm_s="given.parameters.dm_ns / 1000000000")
size = Sweep.newest("atop-size", runs).frame(**MEASURES, members="given.members")
figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
protocol_curves(axes[0], leftovers, "dummies", "dm_s", **STYLE)
axes[0].set(
    title="Dummies for unused numbers", xlabel="dmT (sub-windows)", ylabel="dummies per message", ylim=(0, None)
)
protocol_curves(axes[1], size, "dummies", "members", **STYLE)
axes[1].set(title="Dummies", xlabel="members", ylabel="dummies per message", xscale="log")
protocol_curves(axes[2], size, "delay", "members", **STYLE)
axes[2].set(title="Delay", xlabel="members", ylabel="inter-arrival times of the group", xscale="log", yscale="log")

# %%
skew = Sweep.newest("atop-skew", runs).frame(**MEASURES)
fanout = Sweep.newest("atop-fanout", runs).frame(
    **MEASURES, dissemination="given.dissemination", bus="load.lan_load", delay_ms="latency.mean_ms"
)
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
for protocol in skew["protocol"].unique():
    part = skew[skew["protocol"] == protocol]
    left.plot(part["dummies"], part["delay"], "o", color=COLOURS[protocol], label=NAMES[protocol])
left.set(
    title="Three fast, many slow, three silent",
    xlabel="dummies per message",
    ylabel="inter-arrival times",
    yscale="log",
)
left.legend()
protocol_curves(right, fanout, "bus", "dissemination", form="o", **STYLE)
right.set(title="Load of a bus: copies or multicast", ylabel="share of 10 Mbit/s", ylim=(0, None))
fanout.groupby(["dissemination", "protocol"])[["bus", "delay_ms", "dummies"]].mean()

# %% [markdown]
# ## All statements
#
# Statements of the paper and ours, the values measured for the repository's page (docs/claims.md), and the causes where
# they differ. In a column of values, ✔ holds and ✘ does not.

# %%
Markdown(tables_of("002", ROOT / "docs/claims.md"))
