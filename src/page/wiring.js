// Which nodes a node reads and which read it, for the node under the pointer or the one that the arrow
// keys choose. The data are in #wiring, see wiring.c; the nodes are told in the paragraph after each ring.
(() => {
  "use strict";
  const element = document.getElementById("wiring");
  if (!element) return;
  for (const { id, reads } of JSON.parse(element.textContent)) {
    const picture = document.getElementById(id), told = document.createElement("p");
    const circles = [...picture.querySelectorAll("circle")], centre = (circle) => [circle.cx.baseVal.value, circle.cy.baseVal.value];
    const readers = reads.map(() => []), chosen = document.createElementNS("http://www.w3.org/2000/svg", "g");
    reads.forEach((sources, node) => sources.forEach((source) => readers[source].push(node)));
    told.setAttribute("role", "status");
    told.className = "quiet";
    told.textContent = "\u00a0";
    picture.after(told);
    picture.setAttribute("tabindex", "0");
    picture.insertBefore(chosen, circles[0]);
    const list = (nodes) => nodes.length > 12 ? `${nodes.slice(0, 10).join(", ")} and ${nodes.length - 10} more` : nodes.join(", ") || "none";
    let at = -1;
    const point = (node) => {
      at = (node + reads.length) % reads.length;
      const path = (nodes, colour, dash) => {
        const line = document.createElementNS("http://www.w3.org/2000/svg", "path"), from = centre(circles[at]).join(" ");
        line.setAttribute("d", nodes.map((other) => `M${from}L${centre(circles[other]).join(" ")}`).join(""));
        line.setAttribute("style", `fill: none; stroke: var(${colour}); stroke-width: 1.5; stroke-dasharray: ${dash}`);
        return line;
      };
      chosen.replaceChildren(path(reads[at], "--c2", "none"), path(readers[at], "--c3", "4 3"));
      told.textContent = `Node ${at} reads ${list(reads[at])} (green lines); it is read by ${list(readers[at])} (dashed violet lines).`;
    };
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect(), scale = picture.viewBox.baseVal.width / box.width;
      const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
      const far = circles.map((circle) => Math.hypot(centre(circle)[0] - x, centre(circle)[1] - y));
      const nearest = far.indexOf(Math.min(...far));
      if (far[nearest] < 12 && nearest !== at) point(nearest);
    });
    picture.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: at + 1, ArrowLeft: Math.max(at, 0) - 1, Home: 0, End: reads.length - 1 };
      if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      point(moves[event.key]);
    });
  }
})();
