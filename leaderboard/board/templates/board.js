"use strict";
{
  const said = document.getElementById("said"), count = document.getElementById("count");
  const value = (row, column) => {
    const cell = row.cells[column];
    if (!cell || !cell.textContent.trim()) return null;
    if (cell.dataset.v) return Number(cell.dataset.v);
    return (cell.querySelector("a") || cell).textContent.trim().toLowerCase();
  };
  const compare = (a, b) => (typeof a === "number" ? a - b : a < b ? -1 : a > b ? 1 : 0);

  function sort(table, head, direction) {
    const column = head.cellIndex, down = direction === "descending" ? -1 : 1;
    for (const [body, placed] of table.places) {
      const rows = placed.map((row) => [row, head.matches(".place") ? null : value(row, column)]);
      if (head.matches(".place")) {
        if (direction === "descending") rows.reverse();
      } else {
        rows.sort(([, a], [, b]) => (a === null || b === null ? (a === null) - (b === null) : down * compare(a, b)));
      }
      body.append(...rows.map(([row]) => row));
    }
    table.querySelectorAll("[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", direction);
    const way = head.dataset.way ? `${head.dataset.way}, ` : "";
    said.textContent = `Sorted by ${way}${head.textContent.trim()}, ${direction}`;
  }

  const rows = [...document.querySelectorAll("table.board tbody:not(.title) tr:not(.reference)")];
  const controls = [...document.querySelectorAll(".filters input")];
  const find = document.getElementById("find");

  function tally() {
    const wanted = find.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !row.querySelector(".who").textContent.toLowerCase().includes(wanted);
    const shown = rows.filter((row) => getComputedStyle(row).display !== "none").length;
    count.textContent = `${shown} of ${rows.length} rows shown`;
  }

  document.querySelectorAll("table.board").forEach((table) => {
    const sums = (row) => Number(row.querySelector(".sum").dataset.v);
    const group = (row) => 2 * row.matches(".unranked") + row.matches(".contradicted");
    table.places = [...table.querySelectorAll("tbody:not(.title)")].map((body) => [
      body,
      [...body.rows].sort((a, b) => group(a) - group(b) || sums(b) - sums(a)),
    ]);
    table.tHead.querySelectorAll(".sort").forEach((head) => {
      if (head.closest(".by-tier")) return;
      const button = document.createElement("button");
      button.className = "sort";
      button.dataset.first = head.dataset.first;
      button.append(...head.childNodes);
      head.replaceWith(button);
    });
    table.tHead.addEventListener("click", (event) => {
      const link = event.target.closest(".sort");
      if (!link || link.closest(".by-tier")) return;
      const head = link.closest("th"), now = head.getAttribute("aria-sort");
      const other = now === "descending" ? "ascending" : "descending";
      sort(table, head, now ? other : link.dataset.first);
    });
  });
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

  find.hidden = count.hidden = false;
  tally();
}
