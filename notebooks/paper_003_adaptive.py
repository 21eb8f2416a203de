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
# # Paper 003: ABCAST, Time Warp, and choosing between them
#
# Figures 8 to 10, redrawn from the newest sweeps under `runs/` (or `ORDERBED_RUNS`), measured curves over the paper's
# statements; then results beyond the paper. `orderbed sweep adaptive-rates --spark` makes the first, and so on. A
# figure without its sweep names the missing command.
#
# The cost of a message at a member is the paper's: the time from its receipt until it can be delivered for good,
# roll-backs included. With ABCAST that is the wait for its final timestamp and its turn. With Time Warp it is zero for
# a message without a roll-back, and for others the time from receipt to the last start of their processing.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Markdown

from analysis.metrics.estimate import curve, protocol_curves
from analysis.run import Sweep
from testbed.paths import ROOT
from testbed.run.claims import tables_of

runs = os.environ.get("ORDERBED_RUNS", "runs")
COLOURS = {"timewarp": "C0", "abcast": "C1", "adaptive": "C2", "histogram": "C3", "shadow": "C4"}
NAMES = {"timewarp": "Time Warp", "abcast": "ABCAST", "adaptive": "adaptive"}
NS_PER_MS = 1_000_000
STYLE = {"colours": COLOURS, "names": NAMES}
MEASURES = {
    "protocol": "given.protocol",
    "cost": "ordering.cost_mean_ms",
    "roll_backs": "ordering.roll_backs_per_message",
    "verdict": "verdict",
}


# %% [markdown]
# ## Figure 8: the rate
#
# Five members, 5 ms to process a message (exponential), delays of 1 to 3 ms. The paper: ABCAST costs the same at every
# rate; Time Warp costs more with the rate, because roll-backs become likely, until about 0.12 messages/ms; beyond it
# they become rarer, because messages that wait for the processor are put in order before they are processed.

# %%
rates = Sweep.newest("adaptive-rates", runs).frame(**MEASURES, rate="given.rate_per_s / 1000")
print("verdicts:", dict(rates["verdict"].value_counts()), "of", len(rates), "runs")
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
protocol_curves(left, rates, "cost", "rate", **STYLE)
left.set(title="Figure 8: ordering cost", xlabel="messages per ms (of the group)", ylabel="ms per message and member")
protocol_curves(right, rates[rates["protocol"] == "timewarp"], "roll_backs", "rate", **STYLE)
right.axvline(0.12, color="black", linestyle=":", label="paper: the peak")
right.set(title="Roll-backs of Time Warp", xlabel="messages per ms (of the group)", ylabel="per message and member")
for axes in (left, right):
    axes.set(ylim=(0, None))
    axes.legend()

# %% [markdown]
# ## Figure 9: one far member
#
# Delays of 10 ms, to and from one member 10 to 32 ms, 0.08 messages/ms. The paper: ABCAST waits for the farthest
# member; Time Warp is hardly affected.

# %%
delays = Sweep.newest("adaptive-delay", runs).frame(**MEASURES, far="variant['impairments.p1/n5.to-node.delay']")
delays["far_ms"] = delays["far"].str.removesuffix(" ms").astype(float)
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
protocol_curves(axes, delays, "cost", "far_ms", **STYLE)
reach = np.array([delays["far_ms"].min(), delays["far_ms"].max()])
axes.plot(reach, 2 * reach, color="C1", linestyle=":", label="paper: 2d")
axes.set(title="Figure 9: ordering cost", xlabel="delay to and from the far member (ms)", ylim=(0, None))
axes.set(ylabel="ms per message and member")
axes.legend()

# %% [markdown]
# ## Figure 10: choosing
#
# 200 s; the rate is high from 50 s to 150 s. The paper: Time Warp is cheap while it is low and expensive while it is
# high, ABCAST costs the same, and choosing follows the cheaper one, with a short cost at each change. Cost is that of
# all messages of a second; the band shows the protocol in force. Three groups choose: with a window, a margin and a
# dwell that suit this load, by the shadow execution and by the paper's formulae, and with the default parameters.

# %%
day = Sweep.newest("adaptive-day", runs)
chosen = day.frame(
    **MEASURES,
    series="ordering.series",
    epochs="ordering.epochs",
    switches="ordering.switches",
    seed="variant.seed",
    estimator="given.parameters.costs.estimator",
    dwell_s="given.parameters.dwell_ns / 1000000000",
)
chosen = chosen[chosen["seed"].isin(chosen["seed"].head(1))]  # the first of the five
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4), layout="constrained", sharex=True)
for _, row in chosen.iterrows():
    series = pd.DataFrame(list(row["series"]))
    per_message = series["cost_per_s"] / NS_PER_MS / (series["messages"] / 5)
    style = {"color": COLOURS[row["protocol"]], "label": NAMES[row["protocol"]]}
    if isinstance(row["estimator"], str):  # of the groups that choose
        style["label"] += f", {row['estimator']}, dwell {row['dwell_s']:g} s"
        style["linestyle"] = "-" if row["dwell_s"] >= 10 else ":"
        style["color"] = COLOURS["adaptive" if row["estimator"] == "shadow" else row["estimator"]]
    left.plot(series["t_s"], per_message.rolling(5, min_periods=1).mean(), **style)
    right.plot(series["t_s"], series["cost_per_s"].cumsum() / NS_PER_MS / 1000, **style)
for epoch in chosen[chosen["protocol"] == "adaptive"]["epochs"].iloc[0]:
    left.axvspan(epoch["from_ms"] / 1000, epoch["to_ms"] / 1000, color=COLOURS[epoch["protocol"]], alpha=0.08)
left.set(title="Figure 10: ordering cost", xlabel="s", ylabel="ms per message (mean of 5 s)", yscale="log")
right.set(title="All that it has cost so far", xlabel="s", ylabel="s at each member")
for axes in (left, right):
    axes.legend()
chosen.set_index(["protocol", "estimator", "dwell_s"])[["cost", "roll_backs", "switches", "verdict"]]

# %% [markdown]
# ## Accuracy of the estimates
#
# Each member estimates the cost of both protocols from its own observations. Below: the estimate for the protocol in
# force over its measured cost. The paper's formula (histogram) counts messages that are inserted deeper than the mean
# length of the queue; the shadow execution runs a virtual Time Warp over the same receipts.

# %%
estimates = Sweep.newest("adaptive-estimates", runs).frame(
    first="given.parameters.first",
    estimator="given.parameters.costs.estimator",
    rate="given.rate_per_s / 1000",
    timewarp="ordering.by_protocol.timewarp.estimate_ratio",
    abcast="ordering.by_protocol.abcast.estimate_ratio",
)
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for estimator in ("histogram", "shadow"):
    part = estimates[(estimates["first"] == "timewarp") & (estimates["estimator"] == estimator)]
    curve(axes, part, "timewarp", "rate", colour=COLOURS[estimator], label=f"Time Warp, {estimator}")
part = estimates[estimates["first"] == "abcast"]
curve(axes, part, "abcast", "rate", colour=COLOURS["abcast"], label="ABCAST")
axes.axhspan(0.75, 1.25, color="black", alpha=0.08, label="within 25 %")
axes.set(title="Estimated over measured cost", xlabel="messages per ms (of the group)", ylim=(0, None))
axes.legend()

# %% [markdown]
# ## Cost of a change
#
# Changes every two seconds. A member waits until it has the last message of the old epoch from all members, in both
# directions. In the paper only a change from Time Warp to ABCAST waits. Right: a load that changes every two seconds.

# %%
forced = Sweep.newest("adaptive-switch", runs).frame(**MEASURES, epochs="ordering.epochs")
changes = pd.DataFrame([epoch for epochs in forced["epochs"] for epoch in epochs if epoch["number"] > 1])
flapping = Sweep.newest("adaptive-flapping", runs).frame(**MEASURES, series="ordering.series")
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
for protocol in changes["protocol"].unique():
    waits = changes[changes["protocol"] == protocol]["pause_ms"].dropna().sort_values()
    share = np.arange(1, len(waits) + 1) / len(waits)
    left.step(waits, share, where="post", color=COLOURS[protocol], label=f"to {NAMES[protocol]}")
left.set(title="How long submissions wait", xlabel="ms", ylabel="share of the changes", ylim=(0, 1.02))
for _, row in flapping.iterrows():
    series = pd.DataFrame(list(row["series"]))
    total = series["cost_per_s"].cumsum() / NS_PER_MS / 1000
    right.plot(series["t_s"], total, color=COLOURS[row["protocol"]], label=NAMES[row["protocol"]])
right.set(title="A flapping load: cost so far", xlabel="s", ylabel="s at each member")
for axes in (left, right):
    axes.legend()

# %% [markdown]
# ## Time to finality
#
# Reports of virtual time every 5 to 100 ms; lazy cancellation; a state saved only after every eighth message.

# %%
knobs = Sweep.newest("timewarp-gvt", runs).frame(
    **MEASURES,
    every_ms="given.parameters.gvt_every_ns / 1000000",
    cancellation="given.parameters.cancellation",
    save_every="given.parameters.service.save_every",
    final_ms="ordering.finality_p99_ms",
    still_ms="ordering.gvt_still_max_ms",
    lost_ms="ordering.lost_ms",
    anti="load.messages_by_kind.TIMEWARP_ANTI",
    reports="load.messages_by_kind.TIMEWARP_REPORT",
)
knobs.groupby(["every_ms", "cancellation", "save_every"])[
    ["cost", "final_ms", "still_ms", "lost_ms", "anti", "reports"]
].mean().round(2)

# %% [markdown]
# ## All statements
#
# Statements of the paper and ours, the values measured for the repository's page (docs/claims.md), and the causes where
# they differ. In a column of values, ✔ holds and ✘ does not.

# %%
Markdown(tables_of("003", ROOT / "docs/claims.md"))
