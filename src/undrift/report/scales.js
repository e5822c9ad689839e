"use strict";
// Numbers as a reader wants them, and where they lie in the drawing.
const scales = (() => {
  const finite = (value) => value !== null && Number.isFinite(value);

  const UNITS = {
    bytes: [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "bytes"]],
    count: [[1e9, "billions"], [1e6, "millions"], [1e4, "thousands", 1e3], [0, ""]],
    seconds: [[36000, "hours", 3600], [600, "minutes", 60], [0, "s"]],
    rounds: [[0, ""]],
  };
  const unitOf = (kind, most) => {
    const [from, name, divisor] = UNITS[kind].find(([least]) => most >= least) || [0, ""];
    return { name, divisor: divisor || from || 1 };
  };
  const grouped = (value, digits) =>
    value.toLocaleString("en-GB", { maximumFractionDigits: digits }).replace(/,/g, "\u202f");
  const short = (value) => {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1);
    return String(Number(value.toPrecision(3)));
  };
  const shown = (value, metric, digits = 2) => {
    if (!finite(value)) return "–";
    return metric.percent ? `${(100 * value).toFixed(digits)} %` : short(value);
  };

  const linearTicks = (low, high, wanted, whole = false) => {
    const rough = (high - low) / Math.max(wanted, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const leads = whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10];
    const fitting = leads.find((each) => each * power >= rough * 0.999) * power;
    const step = whole ? Math.max(fitting, 1) : fitting;
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) {
      ticks.push(Number((k * step).toPrecision(12)));
    }
    return ticks;
  };
  const logTicks = (low, high) => {
    const decades = Math.log10(high / low);
    const every = Math.max(1, Math.ceil(decades / 6));
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high * 1.001; power += 1) {
      for (const lead of decades > 2.5 ? [1] : [1, 2, 5]) {
        const tick = lead * 10 ** power;
        if (power % every === 0 && tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
      }
    }
    return ticks;
  };

  // A run that blew up must not flatten all others: what lies far above the bulk is cut off.
  const extent = (series, log, percent) => {
    const all = [];
    for (const { y } of series) {
      for (const part of [y.mean, y.low, y.high]) {
        if (part) for (const v of part) if (finite(v) && (!log || v > 0)) all.push(v);
      }
    }
    if (!all.length) return null;
    all.sort((a, b) => a - b);
    let low = all[0];
    let high = all[all.length - 1];
    let cut = false;
    if (!percent && !log) {
      const bulk = all[Math.floor(0.95 * (all.length - 1))];
      if (bulk > 0 && high > 4 * bulk) {
        high = 1.5 * bulk;
        cut = true;
      }
    }
    if (log) return { low: low / 1.15, high: high * 1.15, cut };
    const margin = (high - low || Math.abs(high) || 1) * 0.04;
    const floor = low >= 0 ? Math.max(0, low - margin) : low - margin;
    return { low: floor, high: percent ? Math.min(1, high + margin) : high + margin, cut };
  };

  const fit = (now, series, width, height) => {
    const y = extent(series, now.log, now.metric.percent) || { low: now.log ? 0.1 : 0, high: 1 };
    if (y.high <= y.low) y.high = y.low + 1;
    const most = Math.max(...series.map(({ x }) => x[x.length - 1]), 0) || 1;
    const narrow = width < 520;
    const box = { left: narrow ? 46 : 56, right: width - 14, top: 34, bottom: height - 46 };
    const level = now.log ? Math.log : (v) => v;
    const span = level(y.high) - level(y.low);
    return {
      box, most, low: y.low, high: y.high, cut: y.cut,
      x: (v) => box.left + ((box.right - box.left) * v) / most,
      y: (v) => box.bottom - ((box.bottom - box.top) * (level(v) - level(y.low))) / span,
      xTicks: (divisor) => 
        linearTicks(0, most / divisor, narrow ? 4 : 8, now.axis.kind === "rounds"),
      yTicks: now.log ? logTicks(y.low, y.high) : linearTicks(y.low, y.high, 6),
    };
  };

  return { finite, unitOf, grouped, short, shown, fit };
})();
