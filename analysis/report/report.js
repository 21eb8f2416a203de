// Reads values off the plots over time: one cross-hair in all of them, one line of text. Without it nothing is lost
// but this.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("series").textContent);
  const readout = document.getElementById("readout");
  const surfaces = [...document.querySelectorAll(".over-time")].map((group) => {
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    const drawing = group.ownerSVGElement;
    line.setAttribute("class", "crosshair");
    line.setAttribute("y1", "0");
    line.setAttribute("y2", String(drawing.viewBox.baseVal.height));
    line.setAttribute("visibility", "hidden");
    group.append(line);
    const { left, right, end } = group.dataset;
    return { drawing, line, left: Number(left), right: Number(right), end: Number(end) };
  });

  const binAt = (series, t) => {
    const index = Math.floor((t - series.start) / series.step);
    return index >= 0 && index < series.length ? index : null;
  };
  const shown = (value, unit) => (value === null ? "–" : `${value.toPrecision(3) * 1} ${unit}`);

  const describe = (t) => {
    const parts = [`${t.toFixed(1)} s`];
    const late = binAt(data.latency, t);
    if (late !== null) {
      const { p50_ms, p99_ms, max_ms } = data.latency.lines;
      parts.push(`p50 ${shown(p50_ms[late], "ms")}, p99 ${shown(p99_ms[late], "ms")}, slowest ${shown(max_ms[late], "ms")}`);
    }
    const epoch = data.order.epochs.find((one) => one.from <= t && t < one.until);
    if (epoch) parts.push(epoch.label);
    const costly = binAt(data.cost, t);
    if (costly !== null) parts.push(`cost ${shown(data.cost.lines[data.order.measured][costly], "ms/s")}`);
    const undoing = data.order.rollbacks && binAt(data.order.rollbacks, t);
    if (undoing !== null) {
      const { rollbacks, undone } = data.order.rollbacks.lines;
      if (rollbacks[undoing]) parts.push(`${rollbacks[undoing]} roll-backs undo ${undone[undoing]}`);
    }
    const busy = binAt(data.traffic, t);
    if (busy !== null) {
      parts.push(data.classes.map((name) => `${name} ${shown(data.traffic.lines[name][busy], "/s")}`).join(", "));
    }
    const faults = data.faults.filter((fault) => fault.from <= t && t < fault.until).map((fault) => fault.label);
    if (faults.length) parts.push(faults.join(", "));
    return parts.join("  ·  ");
  };

  const move = (surface, event) => {
    const box = surface.drawing.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * surface.drawing.viewBox.baseVal.width;
    const share = (x - surface.left) / (surface.right - surface.left);
    if (share < 0 || share > 1) return leave();
    for (const other of surfaces) {
      const at = String(other.left + share * (other.right - other.left));
      other.line.setAttribute("x1", at);
      other.line.setAttribute("x2", at);
      other.line.setAttribute("visibility", "visible");
    }
    readout.textContent = describe(share * surface.end);
    readout.hidden = false;
  };
  const leave = () => {
    readout.hidden = true;
    for (const { line } of surfaces) line.setAttribute("visibility", "hidden");
  };

  for (const surface of surfaces) {
    surface.drawing.addEventListener("pointermove", (event) => move(surface, event));
    surface.drawing.addEventListener("pointerleave", leave);
  }

  // Paper shows everything.
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
})();
