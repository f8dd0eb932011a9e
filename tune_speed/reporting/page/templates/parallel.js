// Brushing: what is dragged along an axis keeps the lines that cross it there.
function enlivenLines(svg) {
  const paths = [...svg.querySelectorAll("a > path, .mark > path")];
  // Each line has a corner on each axis, from left to right.
  const corners = paths.map((path) => {
    const numbers = path.getAttribute("d").match(/-?[\d.]+/g).map(Number);
    return numbers.flatMap((x, i) => (i % 2 ? [] : [[x, numbers[i + 1]]]));
  });
  const places = corners[0].map(([x]) => x);
  const heights = corners.flat().map(([, y]) => y);
  const [top, foot] = [Math.min(...heights), Math.max(...heights)];
  const reach = Math.min(14, (places[1] - places[0]) / 3);
  const brushes = new Map();
  const said = svg.closest("figure").querySelector("output");
  let drag = null;

  function show() {
    const kept = [...brushes.values()];
    const isIn = (line) => kept.every(({ axis, from, to }) => line[axis][1] >= from && line[axis][1] <= to);
    const shown = corners.map(isIn);
    paths.forEach((path, i) => path.parentElement.classList.toggle("off", !shown[i]));
    said.textContent = kept.length ? `${shown.filter(Boolean).length} of ${paths.length} lines kept` : "";
  }
  function clear() {
    brushes.forEach(({ rect }) => rect.remove());
    brushes.clear();
    show();
  }
  const at = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  function axisAt(event) {
    const { x, y } = at(event);
    const axis = places.findIndex((place) => Math.abs(place - x) <= reach);
    return y > top - 8 && y < foot + 8 ? axis : -1;
  }
  function stretch(event) {
    const y = Math.min(Math.max(at(event).y, top - 1), foot + 1);
    const { axis, rect, start } = drag;
    const [from, to] = [Math.min(start, y), Math.max(start, y)];
    rect.setAttribute("y", from);
    rect.setAttribute("height", to - from);
    brushes.set(axis, { axis, rect, from, to });
    show();
  }
  svg.addEventListener("pointerdown", (event) => {
    const axis = axisAt(event);
    // A finger scrolls the page, and the second press of a double click clears.
    if (event.button !== 0 || event.pointerType === "touch" || axis < 0) return;
    brushes.get(axis)?.rect.remove();
    const rect = svg.appendChild(document.createElementNS(svg.namespaceURI, "rect"));
    rect.setAttribute("class", "brush");
    rect.setAttribute("x", places[axis] - reach / 2);
    rect.setAttribute("width", reach);
    drag = { axis, rect, start: Math.min(Math.max(at(event).y, top - 1), foot + 1) };
    svg.setPointerCapture(event.pointerId);
    stretch(event);
  });
  svg.addEventListener("pointermove", (event) => {
    if (drag) stretch(event);
    else svg.classList.toggle("near", axisAt(event) >= 0);
  });
  svg.addEventListener("pointerup", () => {
    if (!drag) return;
    const { axis } = drag;
    drag = null;
    const { from, to, rect } = brushes.get(axis);
    if (to - from >= 2) return;
    // A click is no brush: it takes the axis' brush away.
    rect.remove();
    brushes.delete(axis);
    show();
  });
  svg.addEventListener("dragstart", (event) => event.preventDefault());
  svg.addEventListener("dblclick", clear);
}
document.querySelectorAll(".parallel svg").forEach(enlivenLines);
