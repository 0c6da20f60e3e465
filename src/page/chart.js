// Charts that answer: the values under the pointer, or at the cursor that the arrow keys move; runs hidden
// by their legend; a linear or logarithmic axis; smoothing. The data are in #charts, see chart.c; values
// are told in the paragraph after each chart.
(() => {
  "use strict";
  const element = document.getElementById("charts");
  if (!element) return;
  const charts = JSON.parse(element.textContent), hidden = new Set(), legend = document.getElementById("runs");
  const svg = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // --------------------------------------------------------------------------------------- controls
  const input = (label, attributes) => {
    const holder = document.createElement("label"), made = document.createElement("input");
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    holder.append(made, label);
    controls.append(holder);
    made.addEventListener("input", () => charts.forEach(draw));
    return made;
  };
  const controls = document.createElement("div");
  controls.className = "controls";
  if (legend) legend.before(controls);
  const log = input("logarithmic", { type: "checkbox", checked: "" });
  const smoothing = input("smoothing", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0 });
  [...(legend ? legend.children : [])].forEach((item, run) => {
    const button = document.createElement("button");
    button.append(...item.childNodes);
    button.setAttribute("aria-pressed", "true");
    item.append(button);
    button.addEventListener("click", () => {
      if (!hidden.delete(run)) hidden.add(run);
      button.setAttribute("aria-pressed", String(!hidden.has(run)));
      charts.forEach(draw);
    });
  });

  // ---------------------------------------------------------------------------------------- drawing
  // The mean of a line's values before each point, whose weights fall by this factor from point to point.
  const smooth = (y, factor) => {
    let sum = 0, weight = 0;
    return y.map((value) => (sum = factor * sum + value) / (weight = factor * weight + 1));
  };
  const linearTicks = (least, most) => {
    const raw = (most - least) / 5, unit = 10 ** Math.floor(Math.log10(raw));
    const step = unit * [1, 2, 5, 10].find((size) => raw / unit <= size), ticks = [];
    for (let k = Math.ceil(least / step - 1e-9); k * step <= most; k++) ticks.push(k * step);
    return ticks;
  };
  const logTicks = (least, most) => {
    for (const set of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 7]]) {
      const ticks = [];
      for (let e = Math.floor(Math.log10(least)); e <= Math.log10(most); e++) {
        ticks.push(...set.map((digit) => digit * 10 ** e).filter((value) => value >= least && value <= most));
      }
      if (ticks.length >= 4) return ticks;
    }
    return linearTicks(least, most);
  };
  const draw = (chart) => {
    const picture = document.getElementById(chart.id), axis = picture.querySelector(".y-axis");
    const factor = chart.log ? Number(smoothing.value) : 0; // the learning rate has no noise
    chart.shown = chart.lines.filter((line) => !hidden.has(line.run))
      .map((line) => ({ ...line, y: line.dots ? line.y : smooth(line.y, factor) }));
    const values = chart.shown.flatMap((line) => line.y), logs = chart.log && log.checked;
    let least = Math.min(...values), most = Math.max(...values);
    if (values.length === 0) [least, most] = [1, 10];
    if (!logs && least > 0 && least < 0.5 * most) least = 0;
    if (most <= least) most = least + (logs ? least : Math.abs(least) + 1);
    const of = logs ? Math.log : (value) => value;
    const height = (value) => chart.bottom - ((of(value) - of(least)) / (of(most) - of(least))) * (chart.bottom - chart.top);
    const place = (x) => chart.left + ((x - chart.least) / (chart.most - chart.least)) * (chart.right - chart.left);
    axis.replaceChildren(...(logs ? logTicks : linearTicks)(least, most).flatMap((tick) => {
      const y = height(tick);
      return [svg("line", { class: "grid", x1: chart.left, x2: chart.right, y1: y, y2: y }),
        svg("text", { x: chart.left - 6, y: y + 4, "text-anchor": "end" }, String(Number(tick.toPrecision(4))))];
    }));
    picture.querySelector(".y-label").textContent = chart.y + (logs ? " (logarithmic)" : "");
    picture.querySelector(".lines").replaceChildren(...chart.shown.flatMap((line) => {
      const points = line.x.map((x, i) => [place(x), height(line.y[i])]), stroke = `var(--c${line.run % 6})`;
      const dashes = Math.floor(line.run / 6) % 2 ? { "stroke-dasharray": "6 4" } : {};
      const dots = line.dots && points.length <= 64 ? points : [];
      return [svg("polyline", { class: "line", stroke, "stroke-width": line.dots ? 2.5 : 1.25, ...dashes,
        points: points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ") }),
        ...dots.map(([cx, cy]) => svg("circle", { cx, cy, r: 3.5, fill: stroke }))];
    }));
  };

  // ---------------------------------------------------------------------------------------- values
  for (const chart of charts) {
    const picture = document.getElementById(chart.id), told = document.createElement("p");
    const cursor = svg("line", { class: "cursor", y1: chart.top, y2: chart.bottom, visibility: "hidden" });
    told.className = "quiet";
    told.setAttribute("role", "status");
    told.textContent = "\u00a0";
    picture.after(told);
    picture.append(cursor);
    chart.shown = chart.lines;
    const all = [...new Set(chart.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    let at = -1;
    const nearest = (list, x) => {
      let low = 0, high = list.length - 1;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (list[middle] < x) low = middle; else high = middle;
      }
      return high > 0 && x - list[low] > list[high] - x ? high : Math.max(0, low);
    };
    const point = (index) => {
      if (all.length === 0) return;
      at = Math.max(0, Math.min(all.length - 1, index));
      const x = all[at], place = chart.left + ((x - chart.least) / (chart.most - chart.least)) * (chart.right - chart.left);
      cursor.setAttribute("x1", place);
      cursor.setAttribute("x2", place);
      cursor.setAttribute("visibility", "visible");
      const there = chart.shown.filter((line) => x >= line.x[0] && x <= line.x[line.x.length - 1]);
      const texts = there.map((line) => `${line.name} ${Number(line.y[nearest(line.x, x)].toPrecision(5))}`);
      told.textContent = `${chart.x} ${x.toLocaleString("en")}: ${texts.join("; ") || "no run has a value here"}`;
    };
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect(), width = picture.viewBox.baseVal.width;
      const share = (((event.clientX - box.left) / box.width) * width - chart.left) / (chart.right - chart.left);
      point(nearest(all, chart.least + share * (chart.most - chart.least)));
    });
    picture.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 };
      if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      point(moves[event.key]);
    });
  }
})();
