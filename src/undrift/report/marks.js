"use strict";
// Axes, lines and bands as SVG; texts enter as text, never as markup.
const marks = (() => {
  const { finite, unitOf, grouped, short } = scales;
  const SVG = "http://www.w3.org/2000/svg";

  const make = (tag, attributes = {}, text = null) => {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== null) node.textContent = text;
    return node;
  };

  const drawAxes = (svg, now, scale) => {
    const { box } = scale;
    const unit = unitOf(now.axis.kind, scale.most);
    const digits = now.metric.percent && scale.high - scale.low < 0.04 ? 1 : 0;
    for (const tick of scale.yTicks) {
      const at = scale.y(tick);
      svg.append(make("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }));
      const text = now.metric.percent ? (100 * tick).toFixed(digits) : short(tick);
      svg.append(make("text", { class: "tick y", x: box.left - 8, y: at + 4 }, text));
    }
    for (const tick of scale.xTicks(unit.divisor)) {
      const at = scale.x(tick * unit.divisor);
      const ends = { x1: at, x2: at, y1: box.bottom, y2: box.bottom + 5 };
      svg.append(make("line", { class: "axis", ...ends }));
      svg.append(make("text", { class: "tick x", x: at, y: box.bottom + 19 }, grouped(tick, 6)));
    }
    const base = { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom };
    svg.append(make("line", { class: "axis", ...base }));
    const below = unit.name ? `${now.axis.label}, ${unit.name}` : now.axis.label;
    const middle = { x: (box.left + box.right) / 2, y: box.bottom + 40 };
    svg.append(make("text", { class: "name x-name", ...middle }, below));
    const above = [now.metric.label];
    if (now.metric.percent) above.push("%");
    if (now.smoothing.key !== "raw") above.push(now.smoothing.label);
    if (now.log) above.push("logarithmic");
    svg.append(make("text", { class: "name y-name", x: 2, y: 16 }, above.join(", ")));
    return unit;
  };

  const drawTargets = (svg, now, scale, targets) => {
    if (!now.metric.targets) return;
    for (const target of targets) {
      if (target < scale.low || target > scale.high) continue;
      const at = scale.y(target);
      const ends = { x1: scale.box.left, x2: scale.box.right, y1: at, y2: at };
      svg.append(make("line", { class: "target", ...ends }));
      const text = `target ${short(100 * target)} %`;
      svg.append(make("text", { class: "target", x: scale.box.left + 6, y: at - 5 }, text));
    }
  };

  // Straight pieces between neighbouring finite points; a gap starts a new piece.
  const trace = (xs, ys, scale, log) => {
    let path = "";
    let pen = "M";
    xs.forEach((x, i) => {
      if (!finite(ys[i]) || (log && ys[i] <= 0)) {
        pen = "M";
        return;
      }
      path += `${pen}${scale.x(x).toFixed(1)} ${scale.y(ys[i]).toFixed(1)}`;
      pen = "L";
    });
    return path;
  };
  const stretches = (usable, length) => {
    const found = [];
    let from = null;
    for (let i = 0; i <= length; i += 1) {
      if (i < length && usable(i)) from = from === null ? i : from;
      else if (from !== null) {
        found.push([from, i]);
        from = null;
      }
    }
    return found;
  };
  const band = (xs, y, scale, log) => {
    const usable = (i) => finite(y.low[i]) && finite(y.high[i]) && (!log || y.low[i] > 0);
    const at = (i, v) => `${scale.x(xs[i]).toFixed(1)} ${scale.y(v).toFixed(1)}`;
    return stretches(usable, xs.length).map(([from, to]) => {
      const there = [];
      const back = [];
      for (let i = from; i < to; i += 1) {
        there.push(at(i, y.high[i]));
        back.unshift(at(i, y.low[i]));
      }
      return `M${there.concat(back).join("L")}Z`;
    }).join("");
  };

  const drawSeries = (now, scale, { method, index, curve, x, y }) => {
    const group = make("g", { class: `series c${method.colour}`, "data-method": index });
    if (y.low) group.append(make("path", { class: "band", d: band(x, y, scale, now.log) }));
    const d = trace(x, y.mean, scale, now.log);
    group.append(make("path", { class: "line", d, "stroke-dasharray": method.dash }));
    const lone = stretches((i) => finite(y.mean[i]), x.length).filter(([a, b]) => b - a === 1);
    for (const [i] of lone) {
      if (now.log && y.mean[i] <= 0) continue;
      group.append(make("circle", { class: "dot", cx: scale.x(x[i]), cy: scale.y(y.mean[i]), r: 3 }));
    }
    for (const end of curve.diverged) {
      const value = end.y[now.smoothing.key];
      if (!finite(value) || (now.log && value <= 0)) continue;
      const at = [scale.x(x[end.at]), Math.max(scale.y(value), scale.box.top)];
      const cross = "M-4.5-4.5L4.5 4.5M-4.5 4.5L4.5-4.5";
      group.append(make("path", { class: "cross", d: cross, transform: `translate(${at})` }));
    }
    return group;
  };

  return { make, drawAxes, drawTargets, drawSeries };
})();
