"use strict";
// Gives the page its buttons, tables and links; `enliven` does it for a part that came later.
const page = (() => {
  const root = document.documentElement;
  const all = (part, selector) => [...(part.matches?.(selector) ? [part] : []), ...part.querySelectorAll(selector)];
  const said = document.getElementById("said");
  root.classList.add("js");

  // Light and dark: the system's choice until the button is pressed.
  const theme = document.getElementById("theme");
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);
  function showTheme() {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
    theme.setAttribute("aria-pressed", String(isDark()));
  }
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  systemDark.addEventListener("change", showTheme);
  showTheme();

  // Copying: the clipboard's interface is missing or refused in some browsers on file://.
  function copyBySelection(text) {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "offscreen";
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    return isDone;
  }
  async function copyText(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return copyBySelection(text);
    }
  }
  function enlivenCopy(button) {
    const shown = button.firstChild;
    button.addEventListener("click", async () => {
      const isDone = await copyText(document.getElementById(button.dataset.copy).textContent);
      button.focus();
      shown.data = isDone ? "Copied" : "Not copied";
      button.classList.toggle("done", isDone);
      said.textContent = isDone ? `Copied ${button.dataset.what}` : "Not copied: select the text instead";
      setTimeout(() => {
        shown.data = "Copy";
        button.classList.remove("done");
        said.textContent = "";
      }, 2500);
    });
  }

  // A figure is looked at in a dialog, large: it moves there and back, so that its ids stay unique.
  const dialog = document.createElement("dialog");
  dialog.append(document.createElement("button"));
  dialog.firstChild.textContent = "Close";
  document.body.append(dialog);
  let home = null;
  function enlarge(figure) {
    home = figure.querySelector(".picture");
    dialog.setAttribute("aria-label", figure.querySelector("h3").textContent);
    home.style.height = `${home.offsetHeight}px`;
    dialog.classList.toggle("parallel", figure.classList.contains("parallel"));
    dialog.append(home.firstElementChild);
    dialog.showModal();
  }
  dialog.addEventListener("close", () => {
    home.append(dialog.lastElementChild);
    home.style.height = "";
  });
  dialog.addEventListener("click", (event) => {
    // A link leads to a row behind the dialog; a click into the lines brushes.
    const isBrush = dialog.classList.contains("parallel") && event.target.closest("svg");
    if (!isBrush || event.target.closest("a")) dialog.close();
  });
  function enlivenFigure(figure) {
    const isBrushed = figure.classList.contains("parallel");
    figure.addEventListener("click", (event) => {
      if (event.target.closest(isBrushed ? "button.enlarge" : ".picture, button.enlarge") && !event.target.closest("a")) enlarge(figure);
    });
  }

  // Sorting: stable, missing values last in either direction.
  function sortTable(table, index, isDown) {
    const bodies = [...table.tBodies].map((body) => [body.rows[0].cells[index].dataset.v, body]);
    const known = bodies.filter(([key]) => key !== "");
    const isNumeric = known.every(([key]) => Number.isFinite(Number(key)));
    const text = new Intl.Collator("en", { numeric: true });
    const compare = isNumeric ? (a, b) => a - b : (a, b) => text.compare(a, b);
    known.sort(([a], [b]) => (isDown ? compare(b, a) : compare(a, b)));
    const missing = bodies.filter(([key]) => key === "");
    table.append(...[...known, ...missing].map(([, body]) => body));
  }
  function enlivenHeaders(table) {
    const headers = [...table.tHead.rows[0].cells];
    headers.forEach((header, index) => {
      header.querySelector("button").addEventListener("click", () => {
        const isDown = header.getAttribute("aria-sort") === "ascending";
        headers.forEach((other) => other.removeAttribute("aria-sort"));
        header.setAttribute("aria-sort", isDown ? "descending" : "ascending");
        sortTable(table, index, isDown);
      });
    });
  }

  // Filtering, by what `--where` takes: a text that is no filter is told, and hides nothing.
  const FACTS = new WeakMap();
  const PLACES = new WeakMap();
  function applyFilter(form) {
    const { text, status } = form.elements;
    let holds = () => true;
    let problem = "";
    try {
      if (text.value.trim()) holds = parseWhere(text.value, FACTS.get(form));
    } catch (error) {
      problem = `Not understood, so all are shown: ${error.message.replace(/[.]$/, "")}.`;
    }
    const bodies = [...document.getElementById(form.dataset.table).tBodies];
    for (const body of bodies) {
      const isIn = !status.value || body.dataset.status === status.value;
      body.hidden = !(isIn && holds(PLACES.get(body)));
    }
    const shown = bodies.filter((body) => !body.hidden).length;
    const all = `${bodies.length} trial${bodies.length === 1 ? "" : "s"}`;
    text.setAttribute("aria-invalid", String(Boolean(problem)));
    form.querySelector(".problem").textContent = problem;
    form.querySelector(".count").textContent = shown === bodies.length ? all : `${shown} of ${all}`;
  }
  function enlivenFilter(form) {
    const table = document.getElementById(form.dataset.table);
    FACTS.set(form, JSON.parse(form.querySelector("template").content.textContent));
    [...table.tBodies].forEach((body, place) => PLACES.set(body, place));
    form.addEventListener("input", () => applyFilter(form));
    form.addEventListener("submit", (event) => event.preventDefault());
    applyFilter(form);
  }

  // A row is one line; its link folds out the rest, which `details` holds for readers without script.
  function enlivenRows(table) {
    table.addEventListener("toggle", ({ target }) => {
      const body = target.closest("tbody");
      body.classList.toggle("open", target.open);
      body.querySelector("th a").setAttribute("aria-expanded", String(target.open));
    }, true);
    table.addEventListener("click", (event) => {
      const link = event.target.closest("th a");
      if (!link) return;
      const details = link.closest("tbody").querySelector("details");
      if (!details.open && location.hash !== link.hash) return;
      event.preventDefault();
      details.open = !details.open;
    });
  }

  // A link to a trial shows it, whatever the filter says, and unfolds it.
  const isTarget = (body) => [body.id, encodeURIComponent(body.id)].includes(location.hash.slice(1));
  function showTarget() {
    const body = [...document.querySelectorAll("tbody[id]")].find(isTarget);
    if (!body) return;
    if (body.hidden) {
      const form = document.querySelector(`form[data-table="${body.parentElement.id}"]`);
      form.reset();
      applyFilter(form);
    }
    body.classList.add("open");
    body.querySelector("details").open = true;
    body.scrollIntoView({ block: "center" });
  }
  const KINDS = {
    "button.copy": enlivenCopy,
    "figure.card": enlivenFigure,
    "table.sortable": enlivenHeaders,
    "form.controls": enlivenFilter,
    "table.all": enlivenRows,
  };
  function enliven(part) {
    for (const [selector, give] of Object.entries(KINDS)) all(part, selector).forEach(give);
  }
  enliven(document);
  addEventListener("hashchange", showTarget);
  showTarget();
  return { enliven, showTarget };
})();
