// Space-time diagrams: zoom, pan, tabs, and the past and future of an event. Without it the pictures stand as they are,
// one below the other.
(() => {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";
  const MOST = 64, CHARACTER = 6.4;
  const held = (value, low, high) => Math.min(Math.max(value, low), high);

  const setUp = (box) => {
    const drawing = box.querySelector("svg"), said = box.querySelector("output"), ticks = drawing.querySelector(".st-ticks");
    const left = Number(box.dataset.left), plot = Number(box.dataset.plot);
    const from = Number(box.dataset.from), length = Number(box.dataset.length);
    const whole = drawing.viewBox.baseVal, fullWidth = whole.width, height = whole.height, margin = fullWidth - left - plot;
    const clip = drawing.querySelector("clipPath rect");
    const number = (element, name) => Number(element.getAttribute(name));

    // Whatever has a place in time, with its place in the whole window.
    const moving = drawing.querySelector(".st-moving");
    const lines = [...moving.querySelectorAll(":scope > line")].map((el) => ({ el, a: number(el, "x1") - left, b: number(el, "x2") - left }));
    const rects = [...moving.querySelectorAll(":scope > rect")].map((el) => ({ el, a: number(el, "x") - left, size: number(el, "width") }));
    const marks = [...moving.querySelectorAll(":scope > .m")].map((el) => {
      const { e, f } = el.transform.baseVal.consolidate().matrix;
      return { el, a: e - left, y: f, n: el.dataset.n === undefined ? null : Number(el.dataset.n), text: el.querySelector("text") };
    });
    const events = marks.filter((mark) => mark.n !== null).sort((one, other) => one.n - other.n);
    const arrows = lines.filter(({ el }) => el.classList.contains("a"));
    for (const arrow of arrows) {
      Object.assign(arrow, { y1: number(arrow.el, "y1"), y2: number(arrow.el, "y2"), tail: end(arrow.el.dataset.t), head: end(arrow.el.dataset.h), tip: arrow.el.getAttribute("marker-end") });
    }
    function end(given) { return given === undefined ? null : Number(given); }

    // Which event comes before which: along a line, and along an arrow.
    const before = new Map(), after = new Map(), last = new Map();
    const join = (cause, effect) => {
      (before.get(effect) ?? before.set(effect, []).get(effect)).push(cause);
      (after.get(cause) ?? after.set(cause, []).get(cause)).push(effect);
    };
    for (const { n, el } of events) {
      if (last.has(el.dataset.l)) join(last.get(el.dataset.l), n);
      last.set(el.dataset.l, n);
    }
    for (const { tail, head, el } of arrows) {
      if (tail !== null && head !== null && tail < head && !el.classList.contains("corrupt")) join(tail, head);
    }
    const reached = (start, edges) => {
      const found = new Set(), waiting = [start];
      while (waiting.length) {
        for (const next of edges.get(waiting.pop()) ?? []) if (!found.has(next)) { found.add(next); waiting.push(next); }
      }
      return found;
    };

    // Labels, the weightier first, so that what matters keeps its place.
    const labels = marks.filter((mark) => mark.text).map((mark) => {
      const kind = mark.el.classList, text = mark.text.textContent;
      const weight = kind.contains("crash") || kind.contains("restart") ? 0 : kind.contains("submit") ? 1 : text.includes("#") ? 2 : 3;
      const zone = `${mark.y} ${Number(mark.text.getAttribute("y")) > 0}`;
      return { mark, weight, zone, half: (text.length * CHARACTER + 6) / 2 };
    }).sort((one, other) => one.weight - other.weight || one.mark.a - other.mark.a);

    let width = plot, zoom = 1, origin = 0, chosen = null;
    const scale = () => (width / plot) * zoom;
    const place = (a) => left + (a - origin) * scale();

    const draw = () => {
      origin = held(origin, 0, plot - plot / zoom);
      drawing.setAttribute("viewBox", `0 0 ${left + width + margin} ${height}`);
      clip.setAttribute("width", String(width + margin));
      for (const { el, a, b } of lines) { el.setAttribute("x1", place(a).toFixed(1)); el.setAttribute("x2", place(b).toFixed(1)); }
      for (const { el, a, size } of rects) { el.setAttribute("x", place(a).toFixed(1)); el.setAttribute("width", Math.max(size * scale(), 1).toFixed(1)); }
      for (const { el, a, y } of marks) el.setAttribute("transform", `translate(${place(a).toFixed(1)} ${y})`);
      declutter();
      drawTicks();
    };
    const declutter = () => {
      const taken = new Map();
      for (const { mark, zone, half } of labels) {
        const x = place(mark.a), others = taken.get(zone) ?? taken.set(zone, []).get(zone);
        const fits = x - half + 3 >= left && others.every(([low, high]) => x + half <= low || x - half >= high);
        if (fits) others.push([x - half, x + half]);
        mark.text.classList.toggle("crowded", !fits);
      }
    };
    const drawTicks = () => {
      const start = from + (origin / plot) * length, span = length / zoom, raw = span / Math.max(width / 130, 2);
      const power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
      const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
      ticks.replaceChildren();
      for (let t = Math.ceil(start / step) * step; t <= start + span; t += step) {
        const x = place(((t - from) / length) * plot);
        if (x < left + 18 || x > left + width - 14) continue;
        const line = document.createElementNS(NS, "line"), text = document.createElementNS(NS, "text");
        for (const [name, value] of [["x1", x], ["x2", x], ["y1", ticks.dataset.top], ["y2", ticks.dataset.floor]]) line.setAttribute(name, value);
        line.setAttribute("class", "grid");
        text.setAttribute("x", x); text.setAttribute("y", Number(ticks.dataset.floor) + 20); text.setAttribute("text-anchor", "middle");
        text.textContent = `${t.toFixed(digits)} s`;
        ticks.append(line, text);
      }
    };
    const zoomBy = (factor, at = left + width / 2) => {
      const fixed = origin + (at - left) / scale();
      zoom = held(zoom * factor, 1, MOST);
      origin = fixed - (at - left) / scale();
      draw();
    };
    const panBy = (pixels) => { origin += pixels / scale(); draw(); };
    const reset = () => { zoom = 1; origin = 0; draw(); };

    const choose = (n) => {
      chosen = n;
      box.classList.toggle("chosen", n !== null);
      drawing.querySelectorAll(".past, .future, .self").forEach((el) => el.classList.remove("past", "future", "self"));
      drawing.querySelectorAll(".ring").forEach((el) => el.remove());
      for (const arrow of arrows) point(arrow, null);
      if (n === null) { said.replaceChildren("Choose an event: click it, or go through them with ↑ and ↓."); return; }
      const past = reached(n, before), future = reached(n, after);
      for (const mark of events) mark.el.classList.add(...(mark.n === n ? ["self"] : past.has(mark.n) ? ["past"] : future.has(mark.n) ? ["future"] : []));
      const inPast = (k) => k === n || past.has(k), inFuture = (k) => k === n || future.has(k);
      for (const arrow of arrows) {
        const { tail, head } = arrow;
        if (head !== null && inPast(head) && (tail === null || inPast(tail))) point(arrow, "past");
        else if (tail !== null && inFuture(tail)) point(arrow, "future");
      }
      for (const mark of marks) if (mark.n === null && mark.el.dataset.t !== undefined && inFuture(Number(mark.el.dataset.t))) mark.el.classList.add("future");
      const self = events[n], ring = document.createElementNS(NS, "circle");
      ring.setAttribute("r", "10"); ring.setAttribute("class", "ring"); self.el.append(ring);
      const part = (name, text) => { const el = document.createElement("b"); el.className = name; el.textContent = text; return el; };
      const rest = events.length - 1 - past.size - future.size;
      said.replaceChildren(`${wordsOf(n)}. `, part("past", `${past.size} before it`), ", ", part("future", `${future.size} after it`), `, ${rest} neither.`);
    };
    const point = ({ el, tip }, name) => {
      if (name) el.classList.add(name);
      if (tip) el.setAttribute("marker-end", name ? `url(#${drawing.id}-${name})` : tip);
    };
    const wordsOf = (n) => {
      const own = events[n].el.querySelector("title") ?? arrows.find(({ head }) => head === n)?.el.querySelector("title");
      return own ? own.textContent : "";
    };
    const step = (by) => {
      const n = chosen === null ? (by > 0 ? 0 : events.length - 1) : held(chosen + by, 0, events.length - 1);
      if (!events[n]) return;
      const x = place(events[n].a);
      if (x < left || x > left + width) { origin = events[n].a - plot / zoom / 2; draw(); }
      choose(n);
    };

    // The nearest thing to a point of the drawing: an event, else an arrow.
    const at = (event) => {
      const area = drawing.getBoundingClientRect(), ratio = (left + width + margin) / area.width;
      return [(event.clientX - area.left) * ratio, (event.clientY - area.top) * ratio];
    };
    const nearest = ([x, y]) => {
      let best = null, least = 12;
      for (const mark of events) {
        const distance = Math.hypot(place(mark.a) - x, mark.y - y);
        if (distance < least) [best, least] = [mark.n, distance];
      }
      if (best !== null) return best;
      least = 7;
      for (const { a, b, y1, y2, tail, head } of arrows) {
        const x1 = place(a), dx = place(b) - x1, dy = y2 - y1, along = held(((x - x1) * dx + (y - y1) * dy) / (dx * dx + dy * dy || 1), 0, 1);
        const distance = Math.hypot(x1 + along * dx - x, y1 + along * dy - y);
        if (distance < least && (head ?? tail) !== null) [best, least] = [head ?? tail, distance];
      }
      return best;
    };

    const under = (event) => {
      const mark = event.target.closest(".m[data-n]");
      return mark ? Number(mark.dataset.n) : nearest(at(event));
    };

    const pointers = new Map();
    let moved = 0;
    drawing.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      pointers.set(event.pointerId, event);
      moved = 0;
    });
    drawing.addEventListener("pointermove", (event) => {
      const known = pointers.get(event.pointerId);
      if (!known) return;
      const other = [...pointers.values()].find((one) => one.pointerId !== event.pointerId);
      const dx = event.clientX - known.clientX;
      moved += Math.abs(dx) + (other ? 10 : 0);
      if (moved > 4 && !drawing.hasPointerCapture(event.pointerId)) drawing.setPointerCapture(event.pointerId);
      if (other) {
        const was = Math.abs(known.clientX - other.clientX), is = Math.abs(event.clientX - other.clientX);
        if (was > 8 && is > 8) zoomBy(is / was, (at(event)[0] + at(other)[0]) / 2);
      } else if (moved > 4) panBy(-dx);
      pointers.set(event.pointerId, event);
    });
    const lift = (event) => {
      if (pointers.delete(event.pointerId) && event.type === "pointerup" && moved <= 4) { choose(under(event)); box.focus({ preventScroll: true }); }
    };
    drawing.addEventListener("pointerup", lift);
    drawing.addEventListener("pointercancel", lift);
    drawing.addEventListener("wheel", (event) => {
      // A page that scrolls must not stop here by itself: only after a click, or with a key (a pinch says it has one).
      if (!event.ctrlKey && !event.metaKey && !box.contains(document.activeElement)) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) panBy(event.deltaX || event.deltaY);
      else zoomBy(Math.exp(-held(event.deltaY, -80, 80) / 200), at(event)[0]);
    }, { passive: false });

    const acts = { in: () => zoomBy(1.6), out: () => zoomBy(1 / 1.6), left: () => panBy(-width / 5), right: () => panBy(width / 5), whole: reset };
    const keys = { "+": acts.in, "=": acts.in, "-": acts.out, 0: reset, Home: reset, ArrowLeft: acts.left, ArrowRight: acts.right,
      ArrowUp: () => step(-1), ArrowDown: () => step(1), Escape: () => choose(null) };
    box.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
      event.preventDefault();
      keys[event.key]();
    });
    for (const button of box.querySelectorAll("[data-do]")) button.addEventListener("click", () => acts[button.dataset.do]());
    box.querySelector(".st-bar").hidden = false;
    said.hidden = false;
    choose(null);

    const fit = (pixels) => {
      if (!pixels || pixels === left + width + margin) return;
      const isFirst = width === plot && zoom === 1;
      width = Math.max(pixels - left - margin, 120);
      // A telephone begins with the part that it can show as large as a desk would.
      if (isFirst && width < plot / 2) zoom = held(plot / width / 1.4, 1, 3);
      draw();
    };
    new ResizeObserver((entries) => fit(entries[0].contentRect.width)).observe(drawing);
    addEventListener("beforeprint", () => { choose(null); width = plot; reset(); });
    addEventListener("afterprint", () => fit(drawing.clientWidth));
  };
  document.querySelectorAll(".st-box").forEach(setUp);
  document.querySelectorAll(".st-hint").forEach((hint) => { hint.hidden = false; });

  const list = document.querySelector(".st-tabs");
  if (!list) return;
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const show = (index) => tabs.forEach((tab, own) => {
    const panel = document.getElementById(tab.getAttribute("aria-controls"));
    tab.setAttribute("aria-selected", String(own === index));
    tab.tabIndex = own === index ? 0 : -1;
    panel.setAttribute("role", "tabpanel");
    panel.hidden = own !== index;
  });
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => show(index));
    tab.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const next = (index + by + tabs.length) % tabs.length;
      show(next);
      tabs[next].focus();
    });
  });
  list.hidden = false;
  list.closest("section").classList.add("st-tabbed");
  show(0);
})();
