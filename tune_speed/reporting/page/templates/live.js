// A page that follows: the server says that something changed, and the parts that did are fetched.
(() => {
  const live = document.getElementById("live");
  const LANES = 3;
  const LEAST_MS = 500;
  const AGAIN_MS = 3000;
  const GONE = "What follows may be old: the server does not answer. This page goes on when it does.";
  let state = JSON.parse(document.getElementById("state").content.textContent);
  let source = null;
  let lost = "";
  const near = new Set();
  const asked = new Set();
  const later = new Map();
  const places = () => [...live.querySelectorAll("[data-part]")];
  const path = (rest) => `${live.dataset.base}/${rest}`;

  // Why what is shown may be old: the server is gone, or the store does not answer it.
  function tell(text) {
    lost = text;
    const shown = lost || state.trouble;
    for (const slot of live.querySelectorAll("[data-slot=trouble]")) {
      if (slot.textContent !== shown) slot.textContent = shown;
      slot.hidden = !shown;
    }
  }

  // Only what can be seen soon is fetched; what is empty has no place to be seen at.
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) near[isIntersecting ? "add" : "delete"](target);
    fetchNext();
  }, { rootMargin: "60% 0px" });
  const follow = () => places().forEach((place) => watcher.observe(place));

  // What somebody works with is left as it is: lines that were chosen, an enlarged figure, a button.
  const isBusy = (place) => place.querySelector(".brush, form[data-action] button:active") || [...place.querySelectorAll(".picture")].some((each) => !each.firstElementChild);
  const isStale = (place) => place.dataset.stamp !== state[place.dataset.follows];
  function isDue(place) {
    const name = place.dataset.part;
    if (!state.stamp || !isStale(place) || asked.has(name) || isBusy(place)) return false;
    return (near.has(place) || !place.firstElementChild) && !(later.get(name) > performance.now());
  }
  function fetchNext() {
    if (document.hidden) return;
    for (const place of places().filter(isDue).slice(0, Math.max(0, LANES - asked.size))) fetchPart(place);
  }
  async function fetchPart(place) {
    const name = place.dataset.part;
    let waitMs = AGAIN_MS;
    asked.add(name);
    try {
      const answer = await fetch(path(`parts/${name}`), { cache: "no-store" });
      if (answer.ok) {
        waitMs = Math.max(LEAST_MS, 1000 * Number(answer.headers.get("again-s")));
        const text = await answer.text();
        if (place.isConnected && !isBusy(place)) fill(place, text, answer.headers);
      } else if (answer.status !== 404) tell(await answer.text());
    } catch {
      tell(GONE);
    }
    asked.delete(name);
    later.set(name, performance.now() + waitMs);
    setTimeout(fetchNext, waitMs + 10);
    fetchNext();
  }
  function fill(place, text, headers) {
    place.dataset.follows = headers.get("follows");
    const isNew = !place.firstElementChild || place.classList.contains("hole");
    const isSame = place.dataset.stamp === headers.get("stamp");
    place.dataset.stamp = headers.get("stamp");
    place.removeAttribute("aria-busy");
    if (isSame && !isNew) return;
    const before = isNew ? null : handled(place);
    place.className = "place";
    place.innerHTML = text;
    enliven(place);
    if (before) handle(place, before);
    showAnswers();
    if (isNew && location.hash.startsWith("#trial-") && place.querySelector("table.all")) {
      // A browser looks for the target of a link only when it follows it.
      location.replace(location.hash);
      page.showTarget();
    }
  }
  function enliven(part) {
    page.enliven(part);
    part.querySelectorAll(".parallel svg").forEach(enlivenLines);
  }

  // What a viewer has done to a part: it is done again to the part that takes its place.
  const ROW = "tbody[id]";
  function handled(place) {
    const active = place.contains(document.activeElement) ? document.activeElement : null;
    const sorted = place.querySelector("[aria-sort]");
    return {
      open: [...place.querySelectorAll("details[open]")].map((each) => each.id || each.closest(ROW)?.id),
      values: [...place.querySelectorAll("form [name]")].map((each) => [each.name, each.value]),
      sort: sorted && [sorted.dataset.name, sorted.getAttribute("aria-sort")],
      scrolls: [...place.querySelectorAll(".scroll, pre")].map((each) => [each.scrollTop, each.scrollLeft]),
      focus: active && [active.name, active.id, active.closest(ROW)?.id, active.localName],
      caret: Number.isInteger(active?.selectionStart) ? [active.selectionStart, active.selectionEnd] : null,
    };
  }
  function handle(place, before) {
    for (const [name, value] of before.values) {
      const field = place.querySelector(`form [name="${name}"]`);
      if (field) field.value = value;
    }
    for (const form of place.querySelectorAll("form")) form.dispatchEvent(new Event("input"));
    for (const id of before.open.filter(Boolean)) {
      const found = document.getElementById(id);
      const details = found?.matches("details") ? found : found?.querySelector("details");
      if (details) details.open = true;
    }
    const header = before.sort && place.querySelector(`[data-name="${CSS.escape(before.sort[0])}"]`);
    for (let press = 0; header && press < 2 && header.getAttribute("aria-sort") !== before.sort[1]; press += 1) {
      header.querySelector("button").click();
    }
    [...place.querySelectorAll(".scroll, pre")].forEach((each, i) => {
      if (before.scrolls[i]) [each.scrollTop, each.scrollLeft] = before.scrolls[i];
    });
    if (!before.focus) return;
    const [name, id, row, kind] = before.focus;
    const field = name && place.querySelector(`[name="${name}"]`);
    const again = field || (id && document.getElementById(id)) || (row && document.getElementById(row)?.querySelector(kind));
    again?.focus({ preventScroll: true });
    if (field && before.caret) field.setSelectionRange(...before.caret);
  }

  // What the server said: a few texts at once, and stamps that say what is stale.
  function show() {
    for (const [name, text] of Object.entries(state.texts)) {
      for (const slot of live.querySelectorAll(`[data-slot="${name}"]`)) {
        if (slot.textContent !== text) slot.textContent = text;
      }
    }
    tell(lost);
    live.dataset.state = state.state;
    const bar = live.querySelector("progress");
    if (bar) [bar.max, bar.value] = [state.planned || state.finished || 1, state.finished];
    if (live.dataset.layout !== undefined) {
      if (state.title) document.title = state.title;
      if (state.layout && layoutOf(live) !== state.layout) fetchLayout();
    }
    fetchNext();
  }
  const layoutOf = (part) => part.querySelector(".now")?.dataset.layout;
  async function fetchLayout() {
    if (asked.has("layout")) return;
    asked.add("layout");
    let waitMs = LEAST_MS;
    try {
      const answer = await fetch(path("parts/layout"), { cache: "no-store" });
      if (answer.ok) {
        // It may be an older one: then it is asked for again.
        waitMs = Math.max(LEAST_MS, 1000 * Number(answer.headers.get("again-s")));
        const next = document.createElement("template");
        next.innerHTML = await answer.text();
        if (layoutOf(next.content) !== layoutOf(live)) replaceLayout(next.content);
      }
    } catch {
      tell(GONE);
    }
    asked.delete("layout");
    setTimeout(show, waitMs);
  }
  function replaceLayout(next) {
    const [kept, active] = [document.getElementById("actions"), document.activeElement];
    live.replaceChildren(next);
    // It is the same in any layout, and somebody may be typing in it.
    if (kept) document.getElementById("actions")?.replaceWith(kept);
    if (kept?.contains(active)) active.focus({ preventScroll: true });
    near.clear();
    later.clear();
    watcher.disconnect();
    enliven(live);
    follow();
  }

  // What is asked of the search, and its answer, which stays beside the button that is made anew.
  const said = document.getElementById("said");
  const answers = new Map();
  function showAnswers() {
    for (const place of live.querySelectorAll("[data-answer]")) {
      const text = answers.get(place.dataset.answer) || "";
      if (place.textContent !== text) place.textContent = text;
    }
  }
  function answered(action, text) {
    answers.set(action === "go-on" ? "pause" : action, text);
    said.textContent = text;
    showAnswers();
  }
  function valueOf({ localName, value }) {
    if (localName === "select") return JSON.parse(value);
    const text = value.trim();
    return text === "none" ? null : Number.isFinite(Number(text)) ? Number(text) : text;
  }
  function requestOf(form) {
    const { action, trial } = form.dataset;
    if (action === "stop") return { action, trial };
    const filled = [...form.querySelectorAll("[name]")].filter((each) => each.value.trim());
    // After the first dot, as its form's own name comes before it.
    const fields = Object.fromEntries(filled.map((each) => [each.name.replace(/^[^.]*[.]/, ""), valueOf(each)]));
    return action === "try" ? { action, params: fields } : { action, ...fields };
  }
  async function steer(form) {
    const request = requestOf(form);
    form.setAttribute("aria-busy", "true");
    answered(request.action, "Asked …");
    try {
      const headers = { "content-type": "application/json", "x-tune-speed": "steer" };
      const answer = await fetch(path("steer"), { method: "POST", headers, body: JSON.stringify(request) });
      const text = await answer.text();
      const isJson = (answer.headers.get("content-type") || "").includes("json");
      const { words, answer: came, error } = isJson ? JSON.parse(text) : { error: text };
      answered(request.action, error || `${words}: ${came}`);
      if (answer.ok) live.querySelector(`form[data-action="${request.action}"]`)?.reset();
    } catch {
      answered(request.action, "The server does not answer; what was asked may still be done.");
    }
    form.removeAttribute("aria-busy");
  }
  live.addEventListener("submit", (event) => {
    const form = event.target.closest("form[data-action]");
    if (!form) return;
    event.preventDefault();
    if (!form.hasAttribute("aria-busy")) steer(form);
  });

  // A page that nobody looks at follows nothing: browsers have few connections to a server.
  function listen() {
    if (document.hidden || source) return;
    source = new EventSource(path("events"));
    source.onmessage = (event) => {
      state = JSON.parse(event.data);
      lost = "";
      show();
    };
    source.onerror = () => {
      tell(GONE);
      if (source?.readyState !== EventSource.CLOSED) return;
      // Refused, which a browser takes for good.
      hush();
      setTimeout(listen, AGAIN_MS);
    };
  }
  function hush() {
    source?.close();
    source = null;
  }
  // What was left alone meanwhile, as somebody worked with it.
  for (const kind of ["close", "pointerup"]) addEventListener(kind, () => setTimeout(fetchNext), true);
  document.addEventListener("visibilitychange", () => (document.hidden ? hush() : listen()));
  addEventListener("pagehide", hush);
  addEventListener("pageshow", listen);
  // A point of a figure leads to a row of a table that may not be there yet.
  addEventListener("hashchange", () => {
    const table = location.hash.startsWith("#trial-") && live.querySelector('.hole[data-part$="-trials"]');
    if (table) table.scrollIntoView();
  });

  follow();
  show();
  listen();
})();
