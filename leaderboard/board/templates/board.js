"use strict";
{
  const at = (id) => document.getElementById(id);
  const find = at("find"), menu = at("sort"), count = at("count");
  const tables = [...document.querySelectorAll("table.board")];
  const rows = [...document.querySelectorAll("tr.row")];
  const value = (row, column) => {
    const cell = row.cells[column];
    if (!cell.textContent.trim()) return null;
    if (cell.dataset.v) return Number(cell.dataset.v);
    return (cell.querySelector("a") || cell).textContent.trim().toLowerCase();
  };
  const compare = (a, b) => (typeof a === "number" ? a - b : a < b ? -1 : a > b ? 1 : 0);

  // Reset to the order of the places, then sort by another column.
  function sort(table, key, direction) {
    const head = table.tHead.querySelector(`[data-key="${key}"]`)?.closest("th");
    for (const [body, placed] of table.places) {
      const ordered = [...placed];
      if (key === "place" ? direction === "descending" : key === "sum" && direction === "ascending") ordered.reverse();
      else if (head && key !== "place" && key !== "sum") {
        const down = direction === "descending" ? -1 : 1;
        const cells = new Map(placed.map((row) => [row, value(row, head.cellIndex)]));
        ordered.sort((one, other) => {
          const a = cells.get(one), b = cells.get(other);
          return a === null || b === null ? (a === null) - (b === null) : down * compare(a, b);
        });
      }
      body.append(...ordered);
    }
    table.querySelectorAll("[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
    head?.setAttribute("aria-sort", direction);
    if (head) at("said").textContent = `Sorted by ${head.textContent.trim()}, ${direction}`;
  }

  function tally() {
    const wanted = find.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !row.querySelector(".who").textContent.toLowerCase().includes(wanted);
    const shown = rows.filter((row) => getComputedStyle(row).display !== "none");
    count.textContent = shown.length ? `${shown.length} of ${rows.length} rows shown` : "No row matches the filters.";
    for (const table of tables) {
      const empty = !shown.some((row) => table.contains(row));
      table.hidden = empty;
      table.parentElement.nextElementSibling.hidden = !empty;
    }
  }

  for (const table of tables) {
    table.places = [...table.querySelectorAll("tbody:not(.title)")].map((body) => [body, [...body.rows]]);
    table.tHead.querySelectorAll(".sort").forEach((head) => {
      const button = document.createElement("button");
      button.className = "sort";
      Object.assign(button.dataset, head.dataset);
      button.append(...head.childNodes);
      head.replaceWith(button);
    });
    table.tHead.addEventListener("click", (event) => {
      const button = event.target.closest(".sort");
      if (!button) return;
      const now = button.closest("th").getAttribute("aria-sort");
      sort(table, button.dataset.key, now ? (now === "descending" ? "ascending" : "descending") : button.dataset.first);
    });
  }
  tables[0]?.tHead.querySelectorAll(".sort").forEach((button) => {
    menu.add(new Option(`Sort by ${button.textContent.trim()}`, button.dataset.key));
    const option = menu.options[menu.length - 1];
    option.dataset.first = button.dataset.first;
    option.selected = button.closest("th").hasAttribute("aria-sort");
  });
  menu.addEventListener("input", () => {
    for (const table of tables) sort(table, menu.value, menu.selectedOptions[0].dataset.first);
  });

  const controls = [...document.querySelectorAll(".filters input")];
  const given = new URLSearchParams(location.search);
  for (const control of controls) {
    const text = given.get(control.id);
    if (text !== null && control === find) find.value = text;
    else if (text !== null) control.checked = text === "1";
  }
  document.querySelector(".filters").addEventListener("input", () => {
    const state = new URLSearchParams();
    for (const control of controls) {
      if (control === find && find.value.trim()) state.set("find", find.value.trim());
      else if (control.checked !== control.defaultChecked) state.set(control.id, control.checked ? "1" : "0");
    }
    history.replaceState(null, "", `${String(state) ? `?${state}` : location.pathname}${location.hash}`);
    tally();
  });

  if (matchMedia("(max-width: 56rem)").matches) {
    for (const details of document.querySelectorAll(".contents, .filters details")) details.open = false;
  }
  find.parentElement.hidden = menu.parentElement.hidden = count.hidden = false;
  tally();
}
