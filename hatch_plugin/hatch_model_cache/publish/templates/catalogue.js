
"use strict";
(() => {
  const form = document.getElementById("filters");
  const count = document.getElementById("count");
  const none = document.getElementById("none");
  const rows = [...document.querySelectorAll("main li")];
  const fields = [...form.elements].filter((field) => field.name);

  // Install lines name this page's own address; what a shell would read as more than an address is encoded.
  const stand = document.body.dataset.index;
  if (stand) {
    const here = new URL(location.href);
    here.username = here.password = here.search = here.hash = "";
    here.pathname = here.pathname.replace(/\/[^\/]*\.html?$/, "/").replace(/\/?$/, "/");
    const address = here.href.replace(/[^A-Za-z0-9._~%:\/\[\]-]/g, (c) => "%" + c.charCodeAt(0).toString(16).toUpperCase());
    for (const pre of document.querySelectorAll("pre")) {
      pre.textContent = pre.textContent.replace(`--index-url ${stand}/`, () => `--index-url ${address}`);
    }
  }

  const wanted = () => {
    const chosen = { q: "", target: "", engine: "", signed: false, older: false };
    for (const field of fields) chosen[field.name] = field.type === "checkbox" ? field.checked : field.value.trim();
    return chosen;
  };

  const filter = () => {
    const { q, target, engine, signed, older } = wanted();
    const words = q.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const row of rows) {
      const { search, targets, engine: its } = row.dataset;
      row.hidden = !(
        words.every((word) => search.includes(word)) &&
        (!target || targets.split(" ").includes(target)) &&
        (!engine || its === engine) &&
        (!signed || "signed" in row.dataset) &&
        (older || !("older" in row.dataset))
      );
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length} ${rows.length === 1 ? "cache" : "caches"}`;
    none.hidden = shown > 0;
  };

  const remember = () => {
    const said = new URLSearchParams();
    for (const [name, value] of Object.entries(wanted())) if (value) said.set(name, value === true ? "1" : value);
    history.replaceState(null, "", said.size ? `#${said}` : location.pathname + location.search);
  };

  const recall = () => {
    const said = new URLSearchParams(location.hash.slice(1));
    for (const field of fields) {
      if (field.type === "checkbox") field.checked = said.has(field.name);
      else field.value = said.get(field.name) ?? "";
      if (field.selectedIndex === -1) field.value = "";
    }
    filter();
  };

  const clear = () => {
    form.reset();
    filter();
    remember();
  };

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => { filter(); remember(); });
  none.querySelector("button").addEventListener("click", () => { clear(); form.q.focus(); });
  addEventListener("hashchange", recall);
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !/^(INPUT|SELECT)$/.test(event.target.tagName)) {
      event.preventDefault();
      form.q.focus();
    } else if (event.key === "Escape" && event.target === form.q) {
      clear();
    }
  });

  // One choice of tool holds for all caches.
  addEventListener("change", ({ target }) => {
    if (target.type !== "radio") return;
    for (const radio of document.querySelectorAll('input[type="radio"]')) radio.checked = radio.value === target.value;
  });

  const copy = async (pre) => {
    try {
      await navigator.clipboard.writeText(pre.textContent);
      return true;
    } catch {
      // No clipboard for pages from plain http: mark the text and ask the browser.
      const range = document.createRange();
      range.selectNodeContents(pre);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      return document.execCommand("copy");
    }
  };
  for (const button of document.querySelectorAll(".lines button")) {
    button.hidden = false;
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", async () => {
      button.textContent = (await copy(button.parentElement.querySelector("pre"))) ? "Copied" : "Press Ctrl+C";
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    });
  }

  form.hidden = false;
  recall();
})();
