"use strict";
// Draws the curves that the page carries as JSON; texts enter as text, never as markup.
(() => {
  const { finite, grouped, shown } = scales;
  const { make, drawAxes, drawTargets, drawSeries } = marks;
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("curves-data").textContent);
  const hidden = new Set();
  let frame = null; // what is drawn now: scales, series, stops of the reading line
  let cursor = null; // x at which values are read

  const html = (tag, className, text = null) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== null) node.textContent = text;
    return node;
  };

  // --- switches ---------------------------------------------------------------------------------

  const chosen = (name) => byId("switches").querySelector(`input[name=${name}]:checked`).value;
  const state = () => {
    const metric = data.metrics.find((each) => each.key === chosen("metric"));
    const log = byId("log");
    log.disabled = !metric.log;
    return {
      metric,
      axis: data.axes.find((each) => each.key === chosen("axis")),
      smoothing: data.smoothings.find((each) => each.key === chosen("smoothing")),
      log: metric.log && log.checked,
    };
  };

  // --- drawing ----------------------------------------------------------------------------------

  const visible = (now) => {
    const series = [];
    data.methods.forEach((method, index) => {
      const curve = method.curves[now.metric.key];
      const x = curve && curve.x[now.axis.key];
      if (x && x.length && !hidden.has(index)) {
        series.push({ method, index, curve, x, y: curve.y[now.smoothing.key] });
      }
    });
    return series;
  };

  const summary = (now, series) => {
    const parts = series.map(({ method, y }) => {
      const seen = y.mean.filter(finite);
      if (!seen.length) return `${method.label}: no value.`;
      const best = now.metric.percent ? Math.max(...seen) : Math.min(...seen);
      const ends = [seen[0], seen[seen.length - 1], best].map((v) => shown(v, now.metric));
      return `${method.label}: from ${ends[0]} to ${ends[1]}, best ${ends[2]}.`;
    });
    const what = `${now.metric.label} against ${now.axis.label}, ${now.smoothing.label}.`;
    return parts.length ? `${what} ${parts.join(" ")}` : `${what} No method is shown.`;
  };

  const draw = () => {
    const plot = byId("plot");
    const width = Math.max(plot.clientWidth, 260);
    const height = Math.round(Math.min(Math.max(width * 0.54, 270), 460));
    const now = state();
    const series = visible(now);
    const scale = scales.fit(now, series, width, height);
    const svg = byId("chart");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const title = make("title", { id: "chart-title" }, `${now.metric.label} by ${now.axis.label}`);
    const about = make("desc", { id: "chart-about" }, summary(now, series));
    svg.replaceChildren(title, about);
    const { box } = scale;
    const clip = make("clipPath", { id: "inside" });
    const size = { width: box.right - box.left + 8, height: box.bottom - box.top + 8 };
    clip.append(make("rect", { x: box.left - 4, y: box.top - 4, ...size }));
    svg.append(clip);
    const unit = drawAxes(svg, now, scale);
    drawTargets(svg, now, scale, data.targets);
    const inside = make("g", { "clip-path": "url(#inside)" });
    // The first method is the reference: it lies on top.
    for (const each of [...series].reverse()) inside.append(drawSeries(now, scale, each));
    svg.append(inside, make("g", { id: "reading" }));
    byId("cut").hidden = !scale.cut;
    if (!series.length) {
      const text = hidden.size ? "No method is shown." : "No round was evaluated.";
      const at = { x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2 };
      svg.append(make("text", { class: "name empty", ...at }, text));
    }
    frame = { now, series, scale, unit, width, height, stops: stopsOf(series, scale) };
    legend(now);
    table();
    stopReading(); // on another axis it would point elsewhere
  };

  // --- reading values ---------------------------------------------------------------------------

  const stopsOf = (series, scale) => {
    const all = [...new Set(series.flatMap(({ x }) => x))].sort((a, b) => a - b);
    const stops = [];
    for (const x of all) {
      if (!stops.length || scale.x(x) - scale.x(stops[stops.length - 1]) >= 5) stops.push(x);
    }
    const last = all[all.length - 1];
    if (stops.length > 1 && stops[stops.length - 1] !== last) stops[stops.length - 1] = last;
    return stops;
  };
  const nearest = (xs, x) => {
    let low = 0;
    let high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle;
      else high = middle;
    }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };
  // A method that ended long before this x has no value here.
  const valuesAt = (x) => {
    const found = [];
    for (const each of frame.series) {
      const i = nearest(each.x, x);
      const last = each.x.length - 1;
      const spacing = last ? (each.x[last] - each.x[0]) / last : frame.scale.most;
      if (finite(each.y.mean[i]) && Math.abs(each.x[i] - x) <= spacing * 1.01) {
        found.push({ ...each, i, value: each.y.mean[i] });
      }
    }
    return found.sort((a, b) => b.value - a.value);
  };
  const amount = (x) => {
    const value = x / frame.unit.divisor;
    return value < 100 ? grouped(Number(value.toPrecision(3)), 6) : grouped(value, 0);
  };
  const position = (x) => {
    const label = frame.now.axis.kind === "rounds" ? "round" : frame.now.axis.label;
    return `${label} ${amount(x)}${frame.unit.name ? ` ${frame.unit.name}` : ""}`;
  };

  const MOST_ROWS = 12;
  const read = (x, aloud) => {
    cursor = x;
    const { scale, now } = frame;
    const found = valuesAt(x);
    const layer = byId("reading");
    const at = scale.x(x);
    const rule = { x1: at, x2: at, y1: scale.box.top, y2: scale.box.bottom };
    layer.replaceChildren(make("line", { class: "rule", ...rule }));
    const tip = byId("tip");
    tip.replaceChildren(html("p", "at", position(x)));
    found.forEach(({ method, i, x: xs, y, value, curve }, row) => {
      const inside = value <= scale.high && value >= scale.low;
      const spot = { cx: scale.x(xs[i]), cy: scale.y(value), r: 3.5 };
      if (inside) layer.append(make("circle", { class: `spot c${method.colour}`, ...spot }));
      if (row >= MOST_ROWS) return;
      const line = html("p", `c${method.colour}`);
      line.append(html("i", "chip"), html("span", "who", method.label));
      line.append(html("b", "", shown(value, now.metric)));
      if (y.low && curve.seeds[i] > 1) {
        const [low, high] = [y.low[i], y.high[i]].map((v) => shown(v, now.metric).replace(" %", ""));
        line.append(html("span", "span", `${low}–${high}`));
      }
      tip.append(line);
    });
    if (found.length > MOST_ROWS) {
      tip.append(html("p", "more", `and ${found.length - MOST_ROWS} more`));
    }
    tip.hidden = false;
    const left = at + 14 + tip.offsetWidth > frame.width ? at - 14 - tip.offsetWidth : at + 14;
    tip.style.left = `${Math.min(Math.max(left, 0), Math.max(frame.width - tip.offsetWidth, 0))}px`;
    if (aloud) {
      const said = found.map(({ method, value }) => `${method.label} ${shown(value, now.metric)}`);
      byId("readout").textContent = `${position(x)}: ${said.join(", ") || "no value"}`;
    }
  };
  const stopReading = () => {
    cursor = null;
    byId("tip").hidden = true;
    byId("reading").replaceChildren();
  };

  const followPointer = (event) => {
    const { scale, stops } = frame;
    if (!stops.length) return;
    const box = byId("chart").getBoundingClientRect();
    const px = ((event.clientX - box.left) * frame.width) / box.width;
    const share = (px - scale.box.left) / (scale.box.right - scale.box.left);
    read(stops[nearest(stops, share * scale.most)], false);
  };
  const followKeys = (event) => {
    const { stops } = frame;
    if (!stops.length) return;
    const here = cursor === null ? -1 : nearest(stops, cursor);
    const last = stops.length - 1;
    const to = {
      ArrowRight: Math.min(here + 1, last),
      ArrowLeft: here < 0 ? last : Math.max(here - 1, 0),
      PageUp: Math.min(here + 10, last),
      PageDown: Math.max(here - 10, 0),
      Home: 0,
      End: last,
    }[event.key];
    if (event.key === "Escape") stopReading();
    else if (to === undefined) return;
    else read(stops[to], true);
    event.preventDefault();
  };

  // --- legend and table -------------------------------------------------------------------------

  const legend = (now) => {
    for (const button of byId("legend").querySelectorAll("button[data-method]")) {
      const index = Number(button.dataset.method);
      const curve = data.methods[index].curves[now.metric.key];
      button.setAttribute("aria-pressed", String(!hidden.has(index)));
      button.disabled = !(curve && curve.x[now.axis.key]);
    }
  };
  const emphasise = (index) => {
    for (const group of byId("chart").querySelectorAll(".series")) {
      group.classList.toggle("dim", index !== null && group.dataset.method !== index);
    }
  };
  const toggle = (button) => {
    const every = button.dataset.every;
    const index = Number(button.dataset.method);
    if (every) {
      data.methods.forEach((_, i) => (every === "show" ? hidden.delete(i) : hidden.add(i)));
    } else if (!hidden.delete(index)) hidden.add(index);
    draw();
    emphasise(null);
  };

  const MOST_LINES = 20;
  const table = () => {
    const { now, series, stops, unit } = frame;
    const body = byId("values");
    const head = html("tr");
    const named = unit.name ? `${now.axis.label}, ${unit.name}` : now.axis.label;
    const cell = (tag, text, scope) => {
      const node = html(tag, "", text);
      if (scope) node.scope = scope;
      return node;
    };
    head.append(cell("th", named, "col"));
    series.forEach(({ method }) => head.append(cell("th", method.label, "col")));
    const thead = html("thead");
    thead.append(head);
    const rows = html("tbody");
    const every = Math.max(1, (stops.length - 1) / (MOST_LINES - 1));
    for (let k = 0; Math.round(k) < stops.length; k += every) {
      const x = stops[Math.round(k)];
      const row = html("tr");
      row.append(cell("th", amount(x), "row"));
      const found = new Map(valuesAt(x).map((each) => [each.index, each.value]));
      series.forEach(({ index }) => {
        const value = found.has(index) ? found.get(index) : null;
        row.append(cell("td", shown(value, now.metric)));
      });
      rows.append(row);
    }
    const what = `${now.metric.label} (${now.smoothing.label}), mean of the seeds`;
    const caption = html("caption");
    caption.append(html("span", "", what));
    body.replaceChildren(caption, thead, rows);
  };

  // --- wiring -----------------------------------------------------------------------------------

  const plot = byId("plot");
  byId("switches").addEventListener("change", draw);
  byId("switches").addEventListener("submit", (event) => event.preventDefault());
  plot.addEventListener("pointermove", followPointer);
  plot.addEventListener("pointerdown", followPointer);
  plot.addEventListener("pointerleave", stopReading);
  plot.addEventListener("keydown", followKeys);
  plot.addEventListener("blur", stopReading);
  for (const button of byId("legend").querySelectorAll("button")) {
    button.addEventListener("click", () => toggle(button));
    const index = button.dataset.method;
    if (index === undefined) continue;
    for (const on of ["pointerenter", "focus"]) button.addEventListener(on, () => emphasise(index));
    for (const off of ["pointerleave", "blur"]) button.addEventListener(off, () => emphasise(null));
  }
  new ResizeObserver(() => {
    if (!frame || Math.max(plot.clientWidth, 260) !== frame.width) draw();
  }).observe(plot);
  draw();
})();
