"use strict";

// The learned function at the weight of the slider, drawn from the JSON in the page.
function startSlider({ arms, target }) {
  const [width, height, left, right, top, bottom] = [640, 340, 50, 10, 10, 36];
  const [arm, weight] = ["arm", "weight"].map((id) => document.getElementById(id));
  const plot = document.getElementById("plot");

  const runs = arms.flatMap((one) => one.stops.flatMap((stop) => stop.runs));
  const span = (values) => values.reduce(([least, most], v) => [Math.min(least, v), Math.max(most, v)], [Infinity, -Infinity]);
  const middle = (values, share) => [...values].sort((a, b) => a - b)[Math.round(share * (values.length - 1))];
  const known = [...(target ? target.y : []), ...runs.flatMap((run) => run.train_y || [])];
  const learned = runs.flatMap((run) => run.y);
  // A few runs that shoot off must not flatten all others.
  const [low, high] = span([...known, middle(learned, 0.01), middle(learned, 0.99)]);
  const margin = 0.06 * (high - low || 1);
  const [xLow, xHigh, yLow, yHigh] = [...span(runs.flatMap((run) => run.x)), low - margin, high + margin];
  const toX = (x) => left + ((x - xLow) / (xHigh - xLow || 1)) * (width - left - right);
  const toY = (y) => height - bottom - ((y - yLow) / (yHigh - yLow)) * (height - top - bottom);

  function add(tag, attributes, text) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
    element.textContent = text === undefined ? "" : text;
    plot.appendChild(element);
  }

  function ticks(from, to) {
    const rough = (to - from) / 5 || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const first = Math.ceil(from / step);
    return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
  }

  function drawAxes() {
    for (const y of ticks(yLow, yHigh)) {
      add("line", { class: "axis", x1: left, x2: width - right, y1: toY(y), y2: toY(y) });
      add("text", { x: left - 6, y: toY(y) + 4, "text-anchor": "end" }, y);
    }
    for (const x of ticks(xLow, xHigh)) {
      add("text", { x: toX(x), y: height - bottom + 20, "text-anchor": "middle" }, x);
    }
    add("line", { class: "axis", x1: left, x2: left, y1: top, y2: height - bottom });
  }

  function drawLine(xs, ys, attributes) {
    const clipped = ys.map((y) => Math.max(yLow, Math.min(yHigh, y)));
    add("path", { d: "M" + xs.map((x, i) => `${toX(x).toFixed(1)},${toY(clipped[i]).toFixed(1)}`).join("L"), ...attributes });
  }

  function draw() {
    const chosen = arms[arm.value];
    const stop = chosen.stops[weight.value];
    const [first, ...others] = stop.runs;
    plot.replaceChildren();
    drawAxes();
    if (target) drawLine(target.x, target.y, { class: "target" });
    others.forEach((run) => drawLine(run.x, run.y, { stroke: chosen.colour, "stroke-width": 1, "stroke-opacity": 0.45 }));
    drawLine(first.x, first.y, { stroke: chosen.colour, "stroke-width": 2.5 });
    (first.train_x || []).forEach((x, i) => add("circle", { class: "point", cx: toX(x), cy: toY(first.train_y[i]), r: 3 }));
    const note = stop.weight === chosen.chosen ? ", the chosen weight" : "";
    const error = `mean squared error on ${stop.split}: ${stop.mse}`;
    document.getElementById("reading").textContent = (stop.weight ? `weight ${stop.weight}${note}; ` : "no penalty; ") + error;
  }

  function choose() {
    const stops = arms[arm.value].stops;
    const at = stops.findIndex((stop) => stop.weight === arms[arm.value].chosen);
    weight.max = stops.length - 1;
    weight.value = Math.max(at, 0);
    weight.disabled = stops.length < 2;
    draw();
  }

  arms.forEach((one, index) => arm.add(new Option(one.name, index)));
  arm.addEventListener("change", choose);
  weight.addEventListener("input", draw);
  arm.value = String(Math.min(1, arms.length - 1));
  document.getElementById("slider").hidden = false;
  choose();
}

window.addEventListener("error", (event) => { document.documentElement.dataset.error = event.message; });
const functions = document.getElementById("functions");
if (functions) startSlider(JSON.parse(functions.textContent));
document.documentElement.dataset.ready = "yes";
