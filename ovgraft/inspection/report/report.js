"use strict";
(() => {
  const SHOWN_ROWS = 200, SHOWN_NODES = 120, WIDTH = 188, HEIGHT = 36, ACROSS = 18, DOWN = 44;
  const models = JSON.parse(document.getElementById("data").textContent).map(unpacked);
  const byId = (id) => document.getElementById(id);
  for (const cell of document.querySelectorAll(".strip button")) {
    const told = cell.closest("section").querySelector(".told");
    const tell = () => { told.textContent = cell.dataset.text; };
    cell.addEventListener("mouseenter", tell);
    cell.addEventListener("focus", tell);
    cell.addEventListener("click", () => {
      tell();
      if (cell.dataset.node !== "") { choose(Number(cell.dataset.model), Number(cell.dataset.node)); byId("graph").scrollIntoView({ block: "nearest" }); }
    });
  }
  if (!models.length) return;
  const picker = byId("model"), search = byId("search"), hops = byId("hops"), body = byId("rows").querySelector("tbody"), graph = byId("graph");
  let current = 0, centre = -1, view = [0, 0, 100, 100], whole = view;

  function unpacked(data) {
    const names = data.names.map(([prefix, tail]) => data.prefixes[prefix] + tail);
    const inputs = data.inputs.map((gaps, i) => gaps.map((gap) => i - gap));
    const consumers = names.map(() => []);
    inputs.forEach((sources, i) => sources.forEach((source) => consumers[source].push(i)));
    const types = data.type.map((i) => data.types[i]), outputs = data.output.map((i) => data.outputs[i]);
    const text = names.map((name, i) => `#${i} ${types[i]} ${name} ${outputs[i]}`.toLowerCase());
    return { names, inputs, consumers, types, outputs, text, start: data.start };
  }

  function made(tag, attributes, text) {
    const svg = !["tr", "td"].includes(tag);
    const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function list() {
    const model = models[current], words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const exact = words.length === 1 && /^#\d+$/.test(words[0]) ? Number(words[0].slice(1)) : -1;
    const found = [];
    let total = 0;
    for (let i = 0; i < model.text.length; i++) {
      if (exact >= 0 ? i === exact : words.every((word) => model.text[i].includes(word))) {
        total++;
        if (found.length < SHOWN_ROWS) found.push(i);
      }
    }
    body.replaceChildren(...found.map((i) => {
      const row = made("tr", { tabindex: 0, "data-node": i, class: i === centre ? "here" : "" });
      row.append(made("td", { class: "c-node" }, `#${i}`), made("td", { class: "c-type" }, model.types[i]),
        made("td", { class: "c-name name" }, model.names[i]), made("td", { class: "c-out name" }, model.outputs[i]));
      row.addEventListener("click", () => choose(current, i));
      row.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(current, i); });
      return row;
    }));
    const count = (n) => n.toLocaleString("en");
    byId("count").textContent = total > found.length ? `first ${count(found.length)} of ${count(total)}` : `${count(total)} of ${count(model.names.length)}`;
  }

  function choose(model, node) {
    if (!(node >= 0 && node < models[model].names.length)) return;
    if (model !== current) { current = model; picker.value = String(model); centre = node; list(); }
    centre = node;
    for (const row of body.rows) row.className = Number(row.dataset.node) === node ? "here" : "";
    draw();
    const place = new URLSearchParams({ model: current, node: centre, ...(search.value ? { q: search.value } : {}) });
    try { history.replaceState(null, "", `#${place}`); } catch { /* some viewers forbid it */ }
  }

  function neighbours(model) {
    const reached = new Set([centre]);
    let ring = [centre], cut = false;
    for (let hop = 0; hop < Number(hops.value); hop++) {
      const next = [];
      for (const i of ring) for (const j of [...model.inputs[i], ...model.consumers[i]]) {
        if (reached.has(j)) continue;
        if (reached.size >= SHOWN_NODES) { cut = true; continue; }
        reached.add(j);
        next.push(j);
      }
      ring = next;
    }
    return { shown: [...reached].sort((a, b) => a - b), cut };
  }

  // Levels by longest path (nodes are numbered so that edges lead upwards), order by the mean place of neighbours.
  function placed(model, shown) {
    const level = new Map(), levels = [], x = new Map();
    for (const i of shown) {
      level.set(i, Math.max(-1, ...model.inputs[i].filter((j) => level.has(j)).map((j) => level.get(j))) + 1);
    }
    for (const i of [...shown].reverse()) {
      const below = model.consumers[i].filter((j) => level.has(j)).map((j) => level.get(j));
      if (below.length && !model.inputs[i].some((j) => level.has(j))) level.set(i, Math.min(...below) - 1);
    }
    for (const i of shown) (levels[level.get(i)] ||= []).push(i);
    const spread = (row) => row.forEach((i, at) => x.set(i, (at - (row.length - 1) / 2) * (WIDTH + ACROSS)));
    levels.forEach(spread);
    for (let sweep = 0; sweep < 6; sweep++) {
      const near = sweep % 2 ? model.consumers : model.inputs;
      for (const row of sweep % 2 ? [...levels].reverse() : levels) {
        if (!row) continue;
        const mean = new Map(row.map((i) => {
          const places = near[i].filter((j) => x.has(j)).map((j) => x.get(j));
          return [i, places.length ? places.reduce((a, b) => a + b) / places.length : x.get(i)];
        }));
        row.sort((a, b) => mean.get(a) - mean.get(b));
        spread(row);
      }
    }
    return new Map(shown.map((i) => [i, [x.get(i), level.get(i) * (HEIGHT + DOWN)]]));
  }

  const shortened = (text, room) => text.length <= room ? text : `${text.slice(0, 5)}…${text.slice(text.length - room + 6)}`;

  function draw() {
    const model = models[current], { shown, cut } = neighbours(model), places = placed(model, shown);
    graph.replaceChildren();
    const marker = made("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, orient: "auto", markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse" });
    marker.append(made("path", { d: "M0 0L8 4L0 8z" }));
    graph.append(marker);
    for (const i of shown) for (const j of new Set(model.inputs[i])) if (places.has(j)) {
      const [x1, y1] = places.get(j), [x2, y2] = places.get(i), bottom = y1 + HEIGHT, middle = (bottom + y2) / 2;
      graph.append(made("path", { d: `M${x1} ${bottom}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`, "marker-end": "url(#tip)" }));
    }
    for (const i of shown) {
      const [x, y] = places.get(i), constant = ["Constant", "Initializer"].includes(model.types[i]);
      const node = made("g", { class: `node${i === centre ? " here" : ""}${constant ? " constant" : ""}`, transform: `translate(${x - WIDTH / 2} ${y})`, "data-node": i });
      node.append(made("title", {}, `#${i} ${model.types[i]}\n${model.names[i]}\n${model.outputs[i]}`), made("rect", { width: WIDTH, height: HEIGHT, rx: 5 }),
        made("text", { x: 8, y: 15 }, shortened(`${model.types[i]} ${model.outputs[i]}`, 28)), made("text", { x: 8, y: 29, class: "second", "unicode-bidi": "isolate" }, shortened(model.names[i], 30)));
      node.addEventListener("click", () => { if (!moved) choose(current, i); });
      graph.append(node);
    }
    byId("about").textContent = `#${centre} ${model.types[centre]} ${model.names[centre]}${cut ? ` (the nearest ${SHOWN_NODES} nodes)` : ""}`;
    const xs = [...places.values()].map(([x]) => x), ys = [...places.values()].map(([, y]) => y);
    const left = Math.min(...xs) - WIDTH / 2 - 20, top = Math.min(...ys) - 20;
    whole = [left, top, Math.max(...xs) + WIDTH / 2 + 20 - left, Math.max(...ys) + HEIGHT + 20 - top];
    look(whole);
    const ratio = graph.clientWidth ? whole[2] / graph.clientWidth : 1;
    if (ratio > 2.2) { // too small to read: begin at the chosen node
      const [x, y] = places.get(centre), width = graph.clientWidth * 1.3, height = graph.clientHeight * 1.3;
      look([x - width / 2, y - height / 2, width, height]);
    }
  }

  function look(next) { view = next; graph.setAttribute("viewBox", view.join(" ")); }
  function zoom(factor, fx = 0.5, fy = 0.5) {
    const [x, y, width, height] = view;
    if (width * factor < 60 || width * factor > whole[2] * 8 + 2000) return;
    look([x + width * (1 - factor) * fx, y + height * (1 - factor) * fy, width * factor, height * factor]);
  }
  const scale = () => Math.max(view[2] / graph.clientWidth, view[3] / graph.clientHeight);
  let moved = false;
  const fingers = new Map();
  graph.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = graph.getBoundingClientRect();
    zoom(event.deltaY > 0 ? 1.15 : 1 / 1.15, (event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  }, { passive: false });
  graph.addEventListener("pointerdown", (event) => { if (!fingers.size) moved = false; fingers.set(event.pointerId, [event.clientX, event.clientY]); });
  graph.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const apart = () => { const [a, b] = [...fingers.values()]; return Math.hypot(a[0] - b[0], a[1] - b[1]); };
    const dx = event.clientX - before[0], dy = event.clientY - before[1];
    if (fingers.size === 1) {
      if (!moved && Math.hypot(dx, dy) < 4) return;
      if (!moved) graph.setPointerCapture(event.pointerId);
      moved = true;
      look([view[0] - dx * scale(), view[1] - dy * scale(), view[2], view[3]]);
      fingers.set(event.pointerId, [event.clientX, event.clientY]);
    } else if (fingers.size === 2) {
      moved = true;
      const old = apart();
      fingers.set(event.pointerId, [event.clientX, event.clientY]);
      if (old && apart()) zoom(old / apart());
    }
  });
  for (const kind of ["pointerup", "pointercancel", "pointerleave"]) graph.addEventListener(kind, (event) => fingers.delete(event.pointerId));
  byId("in").addEventListener("click", () => zoom(1 / 1.4));
  byId("out").addEventListener("click", () => zoom(1.4));
  byId("fit").addEventListener("click", () => look(whole));
  hops.addEventListener("change", draw);
  search.addEventListener("input", list);
  picker.addEventListener("change", () => { const model = Number(picker.value); search.value = ""; choose(model, models[model].start); });

  const place = new URLSearchParams(location.hash.slice(1)), wanted = Number(place.get("model"));
  if (models[wanted]) { current = wanted; picker.value = String(wanted); }
  search.value = place.get("q") || "";
  list();
  const node = place.has("node") ? Number(place.get("node")) : models[current].start;
  if (models[current].names.length) choose(current, Number.isInteger(node) && models[current].names[node] !== undefined ? node : models[current].start);
})();
