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

  function tally() {
    const rows = [...document.querySelectorAll("table.board tbody:not(.title) tr:not(.reference)")];
    const shown = rows.filter((row) => getComputedStyle(row).display !== "none").length;
    count.textContent = `${shown} of ${rows.length} rows shown`;
  }

  document.querySelectorAll("table.board").forEach((table) => {
    const sums = (row) => Number(row.querySelector(".sum").dataset.v);
    const group = (row) => 2 * row.matches(".unranked") + row.matches(".flagged, .contradicted");
    table.places = [...table.querySelectorAll("tbody:not(.title)")].map((body) => [
      body,
      [...body.rows].sort((a, b) => group(a) - group(b) || sums(b) - sums(a)),
    ]);
    table.tHead.addEventListener("click", (event) => {
      const link = event.target.closest("a");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey || link.closest(".by-tier")) return;
      event.preventDefault();
      const head = link.closest("th"), now = head.getAttribute("aria-sort");
      const other = now === "descending" ? "ascending" : "descending";
      sort(table, head, now ? other : link.dataset.first);
    });
  });
  document.querySelector(".filters").addEventListener("change", tally);
  count.hidden = false;
  tally();
}
