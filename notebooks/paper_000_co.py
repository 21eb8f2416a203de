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
# # Paper 000: CO, causally ordered broadcast by sequence numbers
#
# The figures and statements of the paper's evaluation, drawn from the newest sweeps under `runs/` (or `ORDERBED_RUNS`).
# Each sweep comes from one experiment: `orderbed sweep co-figure7`, and so on; `--world sim` needs no rights and no
# kernel. A figure without its sweep names the missing command.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Markdown

from analysis.run import Sweep
from testbed.paths import ROOT
from testbed.run.claims import tables_of

runs = os.environ.get("ORDERBED_RUNS", "runs")

# %% [markdown]
# ## Figure 7: processing time and delay against the number of entities
#
# The paper's entities send 512 bytes every 100 ms. T_co is the processor time of one entity for a message; T_ap is the
# time from the request of one application to the delivery at another. The paper shows both on a SPARC 2, and concludes
# that the load is O(n). Circles: data alone acknowledge, as in the paper. Squares: the defaults, which acknowledge with
# CO_STATE; left for each message of data, CO_STATE included. The lines are least-squares fits.

# %%
figure7 = Sweep.newest("co-figure7", runs).frame(
    n="given.members",
    state_ms="given.parameters.state_ns / 1000000",
    t_co_us="processing.per_delivery_us",
    received_us="processing.per_message_us",
    t_ap_ms="latency.mean_ms",
    header_bytes="traffic.header_bytes_mean",
    world="given.world",
)
figure7

# %%
ours, alone = figure7[figure7["state_ms"] == 20], figure7[figure7["state_ms"] == 1000]
figure, axes = plt.subplots(1, 4, figsize=(15, 4), layout="constrained")
for place, part, form, column, title, unit in (
    (axes[0], alone, "o", "received_us", "$T_{co}$, data alone", "µs"),
    (axes[1], ours, "s", "t_co_us", "$T_{co}$, CO_STATE", "µs"),
    (axes[2], alone, "o", "t_ap_ms", "$T_{ap}$, data alone", "ms"),
    (axes[3], ours, "s", "t_ap_ms", "$T_{ap}$, CO_STATE", "ms"),
):
    slope, start = np.polyfit(part["n"], part[column], 1)
    r_squared = np.corrcoef(part["n"], part[column])[0, 1] ** 2
    place.plot(part["n"], part[column], form, label="measured")
    place.plot(part["n"], start + slope * part["n"], "--", label=f"{slope:.2g} {unit} per entity, R² = {r_squared:.2f}")
    place.set(title=title, xlabel="n", ylabel=unit, ylim=(0, 1.15 * part[column].max()))
    place.legend()
figure.suptitle("Figure 7: processing time per message, and delay between applications")

# %% [markdown]
# ## The header
#
# 84 bytes at n = 8 in the paper. The header here holds all bytes but the application's: 16 of the envelope (run and
# datagram), 20 of the message, then ACK and BUF.

# %%
figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
axes.plot(ours["n"], ours["header_bytes"], "o-", label="ours, envelope included")
axes.plot([8], [84], "s", label="paper, n = 8")
axes.set(title="Header of one data message", xlabel="n", ylabel="bytes", ylim=(0, None))
axes.legend()

# %% [markdown]
# ## Beyond the paper: up to 256 entities
#
# In the simulator, with the same core. T_co stays linear: the rows of AL and PAL have one column per entity, and one
# message changes one column.

# %%
scale = Sweep.newest("co-scale", runs).frame(
    n="given.members", t_co_us="processing.per_message_us", header_bytes="traffic.header_bytes_mean"
)
figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
axes.plot(scale["n"], scale["t_co_us"], "o-")
axes.set(title="$T_{co}$ in the simulator", xlabel="n", ylabel="µs", xlim=(0, None), ylim=(0, None))
scale

# %% [markdown]
# ## Buffers
#
# "Acknowledged after 2nW messages have been received": every entity sends as fast as the window W allows.

# %%
buffers = Sweep.newest("co-buffers", runs).frame(
    n="given.members", resident="resident.max", bound="2 * given.members * given.parameters.window"
)
figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
axes.plot(buffers["n"], buffers["bound"], "--", label="2nW")
axes.plot(buffers["n"], buffers["resident"], "o-", label="most messages in one entity's buffers")
axes.set(title="Buffers that are needed", xlabel="n", ylabel="messages", ylim=(0, None))
axes.legend()

# %% [markdown]
# ## Overrun
#
# The buffer in front of one receiver holds two frames and drains ever more slowly. CO and CBCAST (over reliable
# channels) lose no message; they differ in cost.

# %%
columns = {
    "offered": "conservation[6].offered",
    "dropped": "conservation[6].dropped_queue",
    "p50_ms": "latency.p50_ms",
    "p99_ms": "latency.p99_ms",
    "bytes_per_delivery": "traffic.wire_bytes_per_delivery",
    "violations": "properties.validity.violations + properties.agreement.violations + properties.causal.violations",
}
overrun = {name: Sweep.newest(f"{name}-overrun", runs).frame(**columns) for name in ("co", "cbcast")}
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
for name, table in overrun.items():
    share = 100 * table["dropped"] / table["offered"]
    left.plot(share, table["p50_ms"], "o-", label=f"{name}, p50")
    left.plot(share, table["p99_ms"], "o:", label=f"{name}, p99")
    right.plot(share, table["bytes_per_delivery"], "o-", label=name)
left.set(title="Delay", xlabel="frames that the buffer dropped (%)", ylabel="ms", yscale="log")
right.set(title="Wire bytes per delivery", xlabel="frames that the buffer dropped (%)", ylabel="bytes", ylim=(0, None))
left.legend()
right.legend()
print("violations:", {name: int(table["violations"].sum()) for name, table in overrun.items()})

# %% [markdown]
# ## All statements
#
# Statements of the paper and ours, the values measured for the repository's page (docs/claims.md), and the causes where
# they differ. In a column of values, ✔ holds and ✘ does not.

# %%
Markdown(tables_of("000", ROOT / "docs/claims.md"))
