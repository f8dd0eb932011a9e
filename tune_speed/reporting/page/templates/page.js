"use strict";
(() => {
  const root = document.documentElement;
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
  for (const button of document.querySelectorAll("button.copy")) {
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
  for (const table of document.querySelectorAll("table.sortable")) {
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

  // Filtering: every word must occur somewhere in a trial; `lr>0.1` compares a column.
  const COMPARE = {
    "<": (a, b) => a < b,
    ">": (a, b) => a > b,
    "<=": (a, b) => a <= b,
    ">=": (a, b) => a >= b,
    "=": (a, b) => a === b,
  };
  function condition(word, names) {
    const [, name, sign, value] = /^(.+?)(<=|>=|<|>|=)(.+)$/.exec(word) || [];
    const index = names.indexOf(name);
    if (index < 0) return (body) => textOf(body).includes(word);
    return (body) => {
      const cell = body.rows[0].cells[index];
      const isNumeric = cell.dataset.v !== "" && [cell.dataset.v, value].every((v) => Number.isFinite(Number(v)));
      if (isNumeric) return COMPARE[sign](Number(cell.dataset.v), Number(value));
      return sign === "=" && cell.textContent.trim().toLowerCase() === value;
    };
  }
  const texts = new WeakMap();
  function textOf(body) {
    if (!texts.has(body)) texts.set(body, body.textContent.toLowerCase());
    return texts.get(body);
  }
  function applyFilter(form) {
    const table = document.getElementById(form.dataset.table);
    const names = [...table.tHead.rows[0].cells].map((header) => header.dataset.name.toLowerCase());
    const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const conditions = words.map((word) => condition(word, names));
    const status = form.elements.status.value;
    const bodies = [...table.tBodies];
    for (const body of bodies) {
      const isIn = !status || body.dataset.status === status;
      body.hidden = !(isIn && conditions.every((holds) => holds(body)));
    }
    const shown = bodies.filter((body) => !body.hidden).length;
    const all = `${bodies.length} trial${bodies.length === 1 ? "" : "s"}`;
    form.querySelector("output").textContent = shown === bodies.length ? all : `${shown} of ${all}`;
  }
  for (const form of document.querySelectorAll("form.controls")) {
    form.addEventListener("input", () => applyFilter(form));
    form.addEventListener("submit", (event) => event.preventDefault());
    applyFilter(form);
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
    body.querySelector("details").open = true;
    body.scrollIntoView({ block: "center" });
  }
  addEventListener("hashchange", showTarget);
  showTarget();
})();
