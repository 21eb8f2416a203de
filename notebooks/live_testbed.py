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
# # A testbed in a notebook
#
# Four nodes on one Ethernet: a command in a node, impaired wires, a capture, and the capture's results beside those of
# the command. Needs root and a kernel for the wires (`orderbed doctor`). The testbed belongs to this notebook: it ends
# with the last cell, or with the notebook.

# %%
import ipaddress
import os
import re

import matplotlib.pyplot as plt
import pandas as pd

from analysis.engine import session
from testbed.live import Testbed

testbed = Testbed("one-partition", name="notebook", world="netns", runs=os.environ.get("ORDERBED_RUNS", "runs"))
print(testbed.name, "·", len(testbed.nodes()), "nodes · kernel", testbed.description.kernel)

# %% [markdown]
# ## A command in a node
#
# `run` waits for the end; `start` does not. Both enter the node's network, as `orderbed exec` does.

# %%
sender, receiver = "p1/n1", "p1/n2"
address = testbed.topology.node(receiver).ip
print(testbed.run(sender, ["ping", "-c", "3", "-i", "0.1", address]).text)

# %% [markdown]
# ## Impaired wires
#
# Impairments at the port towards the receiver, stage by stage, in the syntax of experiment files. Each `impair` returns
# the values read back from the kernel, which are also in `faults.jsonl` of the record.

# %%
PINGS = 40
STAGES = {
    "as it is": {},
    "delay": {"delay": "10 ms", "jitter": "3 ms"},
    "delay and loss": {"loss": "20 %"},
    "slow": {"loss": "0 %", "delay": "0 ms", "jitter": "0 ms", "rate": "100 kbit/s"},
}
capture = testbed.start_capture()
said = []
for stage, changes in STAGES.items():
    if changes:
        testbed.impair(receiver, **changes)
    text = testbed.run(sender, ["ping", "-c", str(PINGS), "-i", "0.05", "-W", "1", address]).text
    for number, round_trip_ms in re.findall(r"icmp_seq=(\d+) .*time=([\d.]+) ms", text):
        said.append({"stage": stage, "number": int(number), "round_trip_ms": float(round_trip_ms)})
testbed.restore()
counts = testbed.stop_capture()
print(f"{counts['frames']} frames captured, {counts['kernel_dropped_frames']} lost by the collector")

# %% [markdown]
# ## Round-trip times by ping

# %%
said = pd.DataFrame(said)
figure, axes = plt.subplots(figsize=(11, 4), layout="constrained")
for position, stage in enumerate(STAGES):
    of_stage = said[said["stage"] == stage]
    lost = sorted(set(range(1, PINGS + 1)) - set(of_stage["number"]))
    axes.plot(of_stage["number"] + position * PINGS, of_stage["round_trip_ms"], ".", label=stage)
    axes.plot([number + position * PINGS for number in lost], [0] * len(lost), "x", color="black")
axes.set(title="Round-trip time (crosses: no answer)", xlabel="request", ylabel="ms", ylim=(-1, None))
axes.legend()

# %%
said.groupby("stage", sort=False)["round_trip_ms"].describe()[["count", "min", "50%", "max"]]

# %% [markdown]
# ## Delays by the capture
#
# Every frame at every switch port, coming in (`direction` 1) and going out to the node (2). The interfaces are the
# nodes in the order of the topology. A frame that came in at one port and went out at the other has passed the wire, so
# the capture shows delay and loss separately for each direction.

# %%
with session.open_session() as spark:
    frames = (
        spark.read.format("orderbed-pcapng")
        .schema("time_ns long, interface int, ip_dst long, ip_proto short")
        .load(str(capture))
        .where("ip_proto = 1")
        .orderBy("time_ns")
        .toPandas()
    )
frames["port"] = frames["interface"].map(dict(enumerate(node.name for node in testbed.topology.nodes())))
requests = frames[frames["ip_dst"] == int(ipaddress.ip_address(address))]
sent = requests[requests["port"] == sender].reset_index(drop=True)
arrived = requests[requests["port"] == receiver]
sent["stage"] = [stage for stage in STAGES for _ in range(PINGS)]
sent["sent_ns"] = sent["time_ns"]

# %%
# Requests leave 50 ms apart and take less, so the next arrival after each is its own, unless it was lost.
passed = pd.merge_asof(
    sent[["time_ns", "sent_ns", "stage"]],
    arrived[["time_ns"]].assign(arrived_ns=arrived["time_ns"]),
    on="time_ns",
    direction="forward",
    tolerance=45_000_000,
)
passed["one_way_ms"] = (passed["arrived_ns"] - passed["sent_ns"]) / 1e6
found = passed.groupby("stage", sort=False)["one_way_ms"].agg(["size", "count", "min", "median", "max"])
found = found.rename(columns={"size": "sent", "count": "arrived"})
found["lost"] = 1 - found["arrived"] / found["sent"]
found.round(3)

# %%
figure, axes = plt.subplots(figsize=(11, 4), layout="constrained")
for stage in STAGES:
    one_way_ms = passed.loc[passed["stage"] == stage, "one_way_ms"].dropna().sort_values()
    axes.step(one_way_ms, [(rank + 1) / len(one_way_ms) for rank in range(len(one_way_ms))], where="post", label=stage)
axes.set(title=f"One way, {sender} to {receiver}, by the capture", xlabel="ms", ylabel="share of those that arrived")
axes.legend()

# %% [markdown]
# ## The end

# %%
print(found["arrived"].to_dict())
testbed.close()
print("the record is in", testbed.directory)
