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
# # Explore a run
#
# Latency, dummy messages and control traffic of one run over time, with the windows of its faults. The run is that
# named by the environment variable `ORDERBED_RUN`, else the newest under `runs/` (or `ORDERBED_RUNS`). Its tables were
# written by `orderbed analyze`; each can be read in one line, such as `run.table("frames")`.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt

from analysis.run import Run

# %% [markdown]
# ## The run

# %%
manifests = [
    path
    for runs in (os.environ.get("ORDERBED_RUNS", "runs"), "../runs")
    for path in Path(runs).glob("*/*/manifest.json")
]
newest = sorted(manifests, key=os.path.getmtime)
chosen = os.environ.get("ORDERBED_RUN") or (newest[-1].parent if newest else None)
if chosen is None:
    raise SystemExit("there is no run under runs/; make one with `orderbed run quickstart`, or set ORDERBED_RUN")
run = Run(chosen)
print(run.manifest["run"], "·", run.manifest["protocol"]["name"], "·", run.manifest["status"])
print("verdict:", run.summary["verdict"], *run.summary["reasons"])

# %% [markdown]
# ## Faults
#
# A fault with an `until_id` lasts until the effect of that fault; one without lasts to the end of the run, or only ends
# another (`heal`, `restart`, `resume`).

# %%
faults = run.faults.set_index("id")
faults[["kind", "targets", "direction", "parameters", "asked_ns", "effective_s", "until_id"]]

# %%
lasting = faults[faults["until_id"].notna()]
windows = [
    (start, faults.loc[until, "effective_s"], f"#{number} {kind}")
    for number, kind, start, until in zip(
        lasting.index, lasting["kind"], lasting["effective_s"], lasting["until_id"], strict=True
    )
]
colours = dict(zip(dict.fromkeys(label for _, _, label in windows), plt.get_cmap("Set2").colors * 10, strict=False))

# %% [markdown]
# ## Latency over time
#
# From the request to the delivery, in bins by the time of the request. At a gap in the line, no request of that time
# was ever delivered.

# %%
latency = run.table("latency_series").sort_values("t_s")
bin_s = latency["t_s"].diff().median()
latency = latency.set_index((latency["t_s"] / bin_s).round().astype(int))
latency = latency.reindex(range(latency.index.min(), latency.index.max() + 1))  # a bin without deliveries has no row
figure, axes = plt.subplots(figsize=(11, 4), layout="constrained")
for start, until, label in windows:
    axes.axvspan(start, until, color=colours[label], alpha=0.3, lw=0, label=label)
axes.plot(latency.index * bin_s, latency["p50_ms"], label="p50")
axes.plot(latency.index * bin_s, latency["p99_ms"], label="p99")
axes.plot(latency.index * bin_s, latency["max_ms"], ".", ms=3, color="grey", label="slowest")
axes.set(yscale="log", xlabel="seconds since the workload began", ylabel="latency (ms)", title="Latency over time")
axes.legend(ncols=4, frameon=False)
plt.show()

# %% [markdown]
# ## Dummy and control rate over time
#
# Datagrams per second without application data: dummies let other members continue, control datagrams are
# acknowledgements, requests and numbers.

# %%
traffic = run.table("traffic_series").pivot_table(
    index="t_s", columns="class", values="datagrams", aggfunc="sum", fill_value=0
)
per_second = traffic.reindex(columns=["dummy", "control", "retransmission", "application"], fill_value=0)
per_second = per_second / (traffic.index.to_series().diff().median() or 1)
figure, axes = plt.subplots(figsize=(11, 4), layout="constrained")
for start, until, label in windows:
    axes.axvspan(start, until, color=colours[label], alpha=0.3, lw=0, label=label)
for name in ("dummy", "control", "retransmission"):
    axes.step(per_second.index, per_second[name], where="post", label=name)
axes.set(xlabel="seconds since the workload began", ylabel="datagrams/s", title="Dummy and control rate over time")
axes.set_ylim(bottom=0)
axes.legend(ncols=4, frameon=False)
plt.show()

# %% [markdown]
# ## Share of each class

# %%
per_second.mean().rename("datagrams per second").round(1)

# %% [markdown]
# ## Latency by member

# %%
cdf = run.table("latency_cdf")
figure, axes = plt.subplots(figsize=(11, 4), layout="constrained")
for member, rows in cdf.groupby("member_name", sort=False):
    axes.plot(rows["latency_ms"], rows["ratio"], lw=1, label=member if cdf["member_name"].nunique() <= 8 else None)
axes.set(xscale="log", xlabel="latency (ms)", ylabel="share of deliveries", title="Latency by member")
if cdf["member_name"].nunique() <= 8:
    axes.legend(frameon=False)
plt.show()
