// Zoom and hover of timelines, and which emitted line comes from which line of a program. Without it all of them still show.
(function () {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const NEW = ":not([data-ready])";

  function tip() {
    let found = document.querySelector(".tilelink-tip");
    if (!found) {
      found = document.createElement("div");
      found.className = "tilelink-tip";
      found.hidden = true;
      document.body.appendChild(found);
    }
    return found;
  }

  // Titles become a tip that comes at once; the browser's own takes its time.
  function hover(plot) {
    plot.addEventListener("mousemove", (event) => {
      const bar = event.target.closest("rect");
      const title = bar && bar.querySelector("title");
      if (title) { bar.dataset.says = title.textContent; title.remove(); }
      const shown = tip();
      shown.hidden = !(bar && bar.dataset.says);
      if (shown.hidden) return;
      shown.textContent = bar.dataset.says;
      shown.style.left = Math.min(event.clientX + 14, innerWidth - shown.offsetWidth - 8) + "px";
      shown.style.top = Math.min(event.clientY + 14, innerHeight - shown.offsetHeight - 8) + "px";
    });
    plot.addEventListener("mouseleave", () => { tip().hidden = true; });
  }

  function ticks(svg, from, to) {
    const { left, wide, top, high } = Object.fromEntries(Object.entries(svg.dataset).map(([k, v]) => [k, +v]));
    const group = svg.querySelector(".ticks");
    const span = to - from;
    let step = 10 ** Math.floor(Math.log10(span / 4));
    step *= [1, 2, 5, 10].find((k) => span / (k * step) <= 8);
    group.replaceChildren();
    for (let at = Math.ceil(from / step - 1e-9) * step; at <= to + 1e-9; at += step) {
      const x = left + ((at - from) / span) * wide;
      const line = document.createElementNS(SVG, "line");
      for (const [k, v] of Object.entries({ x1: x, x2: x, y1: top, y2: top + high, stroke: "#e4e8ed" })) line.setAttribute(k, v);
      const label = document.createElementNS(SVG, "text");
      for (const [k, v] of Object.entries({ x, y: top + high + 14, fill: "#6b7785", "text-anchor": "middle" })) label.setAttribute(k, v);
      label.textContent = +at.toPrecision(6);
      group.append(line, label);
    }
  }

  // Timelines of one view show the same stretch of time.
  function zoom(root) {
    const svgs = [...root.querySelectorAll("svg.timeline")];
    const fresh = svgs.filter((svg) => svg.matches(NEW));
    let end = Math.max(0, ...svgs.map((svg) => +svg.dataset.end));
    let view = [0, end];
    const show = () => {
      for (const svg of svgs) {
        const plot = svg.querySelector(".plot");
        const [, y, , h] = plot.getAttribute("viewBox").split(" ");
        plot.setAttribute("viewBox", [view[0], y, view[1] - view[0], h].join(" "));
        ticks(svg, view[0], view[1]);
      }
    };
    for (const svg of fresh) {
      svg.dataset.ready = "";
      const plot = svg.querySelector(".plot");
      const time = (event) => {
        const box = svg.getBoundingClientRect();
        const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width - +svg.dataset.left;
        return view[0] + (x / +svg.dataset.wide) * (view[1] - view[0]);
      };
      hover(plot);
      plot.addEventListener("wheel", (event) => {
        event.preventDefault();
        const at = time(event), by = Math.exp(event.deltaY * 0.002);
        const span = Math.min(end, Math.max(end / 1e4, (view[1] - view[0]) * by));
        const from = Math.min(Math.max(0, at - ((at - view[0]) / (view[1] - view[0])) * span), end - span);
        view = [from, from + span];
        show();
      }, { passive: false });
      let held = null;
      plot.addEventListener("mousedown", (event) => { held = time(event); event.preventDefault(); });
      addEventListener("mouseup", () => { held = null; });
      addEventListener("mousemove", (event) => {
        if (held === null) return;
        const span = view[1] - view[0];
        const from = Math.min(Math.max(0, view[0] + held - time(event)), end - span);
        view = [from, from + span];
        show();
      });
      plot.addEventListener("dblclick", () => { view = [0, end]; show(); });
    }
  }

  function sources(root) {
    for (const source of root.querySelectorAll(".source" + NEW)) {
      source.dataset.ready = "";
      const start = source.children[1].querySelector("[data-from]");
      if (start) source.children[1].scrollTop = start.offsetTop - 60;
      const alike = (line) => [...source.querySelectorAll("[data-from]")].filter((l) => l.dataset.from === line.dataset.from);
      source.addEventListener("mouseover", (event) => {
        source.querySelectorAll(".on").forEach((line) => line.classList.remove("on"));
        const line = event.target.closest("[data-from]");
        if (line) alike(line).forEach((l) => l.classList.add("on"));
      });
      source.addEventListener("click", (event) => {
        const line = event.target.closest("[data-from]");
        if (!line) return;
        const [mine, other] = line.closest(".source > .code") === source.children[0] ? source.children : [...source.children].reverse();
        const found = alike(line).find((l) => other.contains(l));
        if (mine && found) other.scrollTop = found.offsetTop - other.clientHeight / 3;
      });
    }
  }

  function ready(root) { zoom(root); sources(root); }
  window.tilelinkReady = ready;
  document.querySelectorAll(".tilelink").forEach(ready);
})();
