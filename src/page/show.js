// Text coloured by what the model holds at each byte. The data are in #reading, see show.c.
(() => {
  "use strict";
  const element = document.getElementById("reading");
  if (!element) return;
  const data = JSON.parse(element.textContent);
  const decode = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const bytes = decode(data.bytes), next = decode(data.next);
  for (const track of data.tracks) {
    const view = new DataView(decode(track.values).buffer), count = view.byteLength / 2;
    track.read = (i) => {
      const stored = i < count ? view.getInt16(2 * i, true) : -32768;
      return stored === -32768 ? NaN : (stored / 32767) * track.scale;
    };
  }
  const select = document.getElementById("track"), readout = document.getElementById("readout");
  const spans = []; // of characters, over all documents
  let track = data.tracks[0], current = null;

  // ---------------------------------------------------------------------------------- characters

  const hex = (byte) => `\u27e8${byte.toString(16).padStart(2, "0")}\u27e9`;
  const glyph = (code) => (code === 9 ? "\u21e5" : code < 0x20 || code === 0x7f ? hex(code) : null);

  // The UTF-8 character at i, or one byte that belongs to none.
  const character = (i, start, end) => {
    const lead = bytes[i];
    const length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (i + length <= end) {
      try {
        const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes.subarray(i, i + length));
        const code = text.codePointAt(0);
        if ([...text].length === 1) {
          if (lead === 0x0a) return { length, text: i === start ? "\u21b5" : "\u21b5\n", control: true };
          if (glyph(code)) return { length, text: glyph(code), control: true };
          const unseen = /[\p{C}\p{Zl}\p{Zp}]/u.test(text); // marks that turn or hide text around them
          return { length, text: unseen ? `\u27e8U+${code.toString(16)}\u27e9` : text, control: unseen };
        }
      } catch { /* no UTF-8 */ }
    }
    return { length: 1, text: hex(lead), control: true };
  };

  const build = () => {
    const holder = document.getElementById("documents");
    data.documents.forEach((doc, number) => {
      const section = document.createElement("section"), title = document.createElement("h3");
      const text = document.createElement("div");
      title.id = `document-${number + 1}`;
      title.textContent = `Document ${number + 1}` + (doc.label === null ? "" : `, label ${doc.label}`);
      text.className = "text";
      text.tabIndex = 0;
      text.setAttribute("role", "group");
      text.setAttribute("aria-labelledby", title.id);
      text.setAttribute("aria-describedby", "keys");
      const first = spans.length, end = doc.start + doc.length;
      for (let i = doc.start; i < end;) {
        const found = character(i, doc.start, end), span = document.createElement("span");
        span.textContent = found.text;
        if (found.control) span.className = "control";
        span.dataset.at = String(spans.length);
        spans.push({ span, from: i, length: found.length });
        text.append(span);
        i += found.length;
      }
      text.dataset.first = String(first);
      text.dataset.last = String(spans.length - 1);
      section.append(title, text);
      holder.append(section);
    });
  };

  // -------------------------------------------------------------------------------------- colours

  const colour = (name) => {
    const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
  };
  // A label has the colour of its histogram, the others of a probe of many have none; without labels orange is above zero.
  const turned = () => data.classes.length === 2 && track.above === data.classes[0];
  const centre = () => (track.kind === "unit" && track.histogram && track.histogram.threshold) || 0;
  const own = () => (data.classes.length > 2 ? data.classes.indexOf(track.above) : -1);
  let paper, low, high, odd;
  const mixed = (value) => {
    if (Number.isNaN(value)) return "transparent";
    const from = value - centre(), share = Math.min(1, Math.abs(from) / track.full);
    const end = track.kind === "surprise" ? odd : from < 0 === turned() ? high : low;
    return `rgb(${paper.map((p, k) => Math.round(p + share * (end[k] - p))).join(", ")})`;
  };
  const paint = () => {
    [paper, low, high, odd] = ["--paper", "--low", "--high", "--odd"].map(colour);
    if (own() >= 0) [low, high] = [colour("--quiet"), colour(`--c${own() % 6}`)].map((c) => c.map((v, k) => (v + paper[k]) / 2));
    for (const { span, from, length } of spans) {
      const colours = [];
      for (let i = from; i < from + length; i++) colours.push(mixed(track.read(i)));
      span.style.backgroundColor = colours[length - 1];
      span.style.backgroundImage = length === 1 ? "" :
        `linear-gradient(to right, ${colours.map((c, k) => `${c} ${(100 * k) / length}% ${(100 * (k + 1)) / length}%`).join(", ")})`;
    }
    const ends = [centre() - track.full, centre(), centre() + track.full];
    const sides = track.kind === "surprise" ? [0, track.full] : turned() ? ends.reverse() : ends;
    const said = [track.below, track.above].map((label) => (label === undefined ? "" : `${label}: `));
    if (turned()) said.reverse();
    const scale = document.getElementById("scale"), bar = document.createElement("span");
    bar.className = "bar";
    bar.style.backgroundImage = `linear-gradient(to right, ${sides.map(mixed).join(", ")})`;
    scale.replaceChildren(said[0] + sides[0].toFixed(2), bar,
      said[1] + sides[sides.length - 1].toFixed(2) + (track.kind === "surprise" ? " bits" : ""));
  };

  // -------------------------------------------------------------------------------------- readout

  const name = (byte) => {
    if (byte === 0x20) return "space";
    if (byte === 0x0a) return "line feed";
    const shown = byte > 0x20 && byte < 0x7f ? `'${String.fromCharCode(byte)}' ` : "";
    return `${shown}0x${byte.toString(16).padStart(2, "0")}`;
  };
  const described = (i) => {
    const value = track.read(i);
    let text = Number.isNaN(value) ? "nothing before it to predict it from" : value.toFixed(4);
    if (track.kind === "surprise" && !Number.isNaN(value)) text += " bits";
    if (track.kind === "probe") text += `, probability ${(1 / (1 + Math.exp(-data.scale * value))).toFixed(4)} of ${track.above}`;
    return text;
  };
  const point = (index) => {
    if (current) current.span.classList.remove("at");
    current = spans[index];
    current.span.classList.add("at");
    const last = current.from + current.length - 1, list = [], likely = [];
    for (let i = current.from; i <= last; i++) list.push(`${name(bytes[i])}: ${described(i)}`);
    for (let k = 0; k < data.nexts; k++) {
      const at = 2 * (last * data.nexts + k);
      likely.push(`${name(next[at])} ${next[at + 1] === 0 ? "< 1" : next[at + 1]} %`);
    }
    const line = (text) => Object.assign(document.createElement("p"), { textContent: text });
    readout.replaceChildren(line(`byte ${current.from}, ${list.join("; ")}`), line(`next: ${likely.join(", ")}`));
  };
  const holder = document.getElementById("documents");
  holder.addEventListener("pointerover", (event) => {
    const at = event.target.dataset.at;
    if (at !== undefined) point(Number(at));
  });
  holder.addEventListener("click", (event) => {
    const at = event.target.dataset.at;
    if (at !== undefined) point(Number(at));
  });
  holder.addEventListener("keydown", (event) => {
    const text = event.target;
    if (!text.classList.contains("text") || event.ctrlKey || event.altKey || event.metaKey) return;
    const first = Number(text.dataset.first), last = Number(text.dataset.last);
    const index = current ? Number(current.span.dataset.at) : -1;
    const inside = index >= first && index <= last;
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 };
    let target;
    if (event.key in moves) target = inside ? index + moves[event.key] : first;
    else if (event.key === "Home") target = first;
    else if (event.key === "End") target = last;
    else return;
    event.preventDefault();
    point(Math.max(first, Math.min(last, target)));
    current.span.scrollIntoView({ block: "nearest" });
  });

  // ------------------------------------------------------------------------------------ histogram

  const svg = (tag, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const draw = () => {
    const figure = document.getElementById("histogram");
    if (!figure) return;
    const h = track.histogram;
    figure.hidden = !h;
    if (!h) return;
    const width = Math.min(640, figure.clientWidth || 640), height = 238, left = 44, bottom = 180, top = 12;
    const most = Math.max(1, ...h.counts.flat()), bins = h.counts[0].length, right = width - 12;
    const step = (right - left) / bins, place = (value) => left + ((value - h.least) / (h.most - h.least)) * (right - left);
    const picture = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
    picture.setAttribute("aria-label", `Histogram of ${track.name} by label; the table below has its numbers`);
    h.counts.forEach((counts, k) => {
      let path = `M${left} ${bottom}`;
      counts.forEach((count, i) => {
        const y = bottom - ((bottom - top) * count) / most;
        path += `L${(left + i * step).toFixed(1)} ${y.toFixed(1)}L${(left + (i + 1) * step).toFixed(1)} ${y.toFixed(1)}`;
      });
      const paint = `var(--c${k % 6})`;
      picture.append(svg("path", { d: `${path}L${right} ${bottom}Z`, fill: paint, "fill-opacity": 0.2, stroke: paint, "stroke-width": 2 }));
    });
    picture.append(svg("line", { class: "axis", x1: left, y1: bottom, x2: right, y2: bottom }));
    picture.append(svg("line", { class: "axis", x1: left, y1: top, x2: left, y2: bottom }));
    for (const [count, y] of [[0, bottom], [most, top]]) {
      picture.append(svg("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, String(count)));
    }
    picture.append(svg("text", { x: left + 6, y: top + 4 }, "documents"));
    picture.append(svg("text", { x: (left + right) / 2, y: bottom + 36, "text-anchor": "middle" }, h.subject));
    const label = (value, text, row, dashes) => {
      const x = place(value), anchor = x < left + 40 ? "start" : x > right - 40 ? "end" : "middle";
      if (dashes) picture.append(svg("line", { class: "axis", x1: x, y1: top, x2: x, y2: bottom, "stroke-dasharray": dashes }));
      picture.append(svg("text", { x, y: bottom + 18 * row, "text-anchor": anchor }, text));
    };
    label(h.least, h.least.toFixed(2), 1);
    label(h.most, h.most.toFixed(2), 1);
    const inside = (value) => value > h.least && value < h.most;
    if (inside(0) && h.threshold !== 0) label(0, "0", Math.min(place(0) - left, right - place(0)) < 60 ? 2 : 1, "1 4");
    if (h.threshold !== null && inside(h.threshold)) label(h.threshold, `threshold ${h.threshold.toFixed(2)}`, 3, "6 3");
    const legend = document.createElement("ul");
    legend.className = "legend";
    data.classes.forEach((label, k) => {
      const item = document.createElement("li"), swatch = document.createElement("span");
      swatch.className = "swatch";
      swatch.style.color = `var(--c${k % 6})`;
      item.append(swatch, `label ${label}, ${h.counts[k].reduce((a, b) => a + b, 0)} documents`);
      legend.append(item);
    });
    const caption = document.createElement("figcaption");
    caption.textContent = h.subject +
      (h.error === null ? "." : `; this threshold errs on ${h.error.toFixed(2)} % of them.`);
    const details = document.createElement("details"), summary = document.createElement("summary");
    const table = document.createElement("table"), head = table.createTHead().insertRow();
    summary.textContent = "Table of the histogram";
    for (const text of ["from", ...data.classes.map((c) => `label ${c}`)]) {
      head.append(Object.assign(document.createElement("th"), { textContent: text, scope: "col" }));
    }
    const body = table.createTBody();
    for (let i = 0; i < bins; i++) {
      const row = body.insertRow();
      row.insertCell().textContent = (h.least + (i / bins) * (h.most - h.least)).toFixed(3);
      for (const counts of h.counts) row.insertCell().textContent = String(counts[i]);
    }
    details.append(summary, table);
    figure.replaceChildren(picture, legend, caption, details);
  };

  // ---------------------------------------------------------------------------------------- start

  data.tracks.forEach((t, k) => select.append(new Option(t.name, String(k))));
  const choose = () => {
    track = data.tracks[Number(select.value)];
    paint();
    draw();
    if (current) point(Number(current.span.dataset.at));
  };
  build();
  choose();
  document.body.classList.add("docked"); // the readout stands below the text instead of covering it
  document.body.append(readout);
  select.addEventListener("change", choose);
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
})();
