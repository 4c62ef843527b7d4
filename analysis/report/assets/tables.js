// Tables: sorted by the column whose head is chosen, and their numbers of rounds and devices bring these into view.

function bindTables(timelineOf, root = document) {
  for (const part of root.querySelectorAll("[data-html]")) {
    part.closest("details").addEventListener("toggle", async () => {
      part.innerHTML = await inflated(part.dataset.html).text();
      bindTables(timelineOf, part);
    }, { once: true });
  }
  for (const table of root.querySelectorAll("table.sortable")) {
    for (const [place, head] of [...table.tHead.rows[0].cells].entries()) {
      head.tabIndex = 0;
      head.title = "sort";
      head.addEventListener("click", () => sortBy(table, place));
      head.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        sortBy(table, place);
      });
    }
  }
  for (const button of root.querySelectorAll("button[data-timeline]")) {
    button.addEventListener("click", async () => {
      const timeline = await timelineOf(button.dataset.timeline);
      if (!timeline) return;
      if (button.dataset.round !== undefined) timeline.showRound(Number(button.dataset.round));
      else timeline.find(Number(button.dataset.device));
      const fold = timeline.root.closest("details");
      if (fold) fold.open = true;
      timeline.root.scrollIntoView({ block: "start" });
      timeline.stage.focus({ preventScroll: true });
    });
  }
}

/** Numbers largest first, texts by the alphabet; once more the other way round. What is empty stays at the end. */
function sortBy(table, place) {
  const head = table.tHead.rows[0].cells[place], body = table.tBodies[0], rows = [...body.rows];
  const value = (row) => { const { v } = row.cells[place].dataset; return v === undefined ? null : Number(v); };
  const text = (row) => row.cells[place].textContent;
  const numbers = rows.some((row) => value(row) !== null);
  const before = head.getAttribute("aria-sort");
  const order = before ? (before === "ascending" ? "descending" : "ascending") : numbers ? "descending" : "ascending";
  const sign = order === "ascending" ? 1 : -1;
  const empty = (row) => (numbers ? value(row) === null : text(row) === "");
  rows.sort((a, b) => empty(a) - empty(b) || sign * (numbers ? value(a) - value(b) : text(a).localeCompare(text(b))));
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  body.append(...rows);
}
