// The values of charts under the pointer, or at the cursor that the arrow keys move. The data are in
// #charts, see chart.c; values are told in the paragraph after each chart.
(() => {
  "use strict";
  const element = document.getElementById("charts");
  if (!element) return;
  for (const chart of JSON.parse(element.textContent)) {
    const picture = document.getElementById(chart.id), told = document.createElement("p");
    const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
    told.className = "quiet";
    told.setAttribute("role", "status");
    told.textContent = "\u00a0";
    picture.after(told);
    cursor.setAttribute("class", "cursor");
    cursor.setAttribute("y1", chart.top);
    cursor.setAttribute("y2", chart.bottom);
    cursor.setAttribute("visibility", "hidden");
    picture.append(cursor);
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
      const texts = chart.lines.map((line) => `${line.name} ${line.y[nearest(line.x, x)]}`);
      told.textContent = `${chart.x} ${x.toLocaleString("en")}: ${texts.join("; ")}`;
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
