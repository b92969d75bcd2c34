// Tables that can be sorted and searched. Long tables show their first rows, and more on request.

const ROWS_AT_ONCE = 20;

/**
 * Build a table.
 *
 * @param caption  title of the table
 * @param columns  [{name, value, show, isNumber, isGauge, isProse}]: value(row) sorts, show(row) is text or an element; isProse: a sentence
 * @param rows     any objects
 * @param isMarked (row) => whether the row is highlighted
 * @param search   (row) => searched text; without it there is no search field
 * @param hint     placeholder of the search field
 * @param most     number of rows shown at first
 *
 * Columns that are empty in all rows are left out.
 */
function table({ caption, columns: wanted, rows, isMarked = () => false, search = null, hint = "Search", most = ROWS_AT_ONCE }) {
  const columns = wanted.filter((column) => !column.name || rows.some((row) => hasText(column.show(row))));
  let shownRows = most;
  let order = null;
  let sought = "";
  const body = make("tbody");
  const more = make("button", { type: "button", click: () => { shownRows *= 5; fill(); } });
  const heads = columns.map((column, place) => make("th", { scope: "col", class: column.isNumber && "number" },
    column.value ? make("button", { type: "button", title: `Sort by ${column.name}`, click: () => sortBy(place) }, column.name) : column.name));

  const sortBy = (place) => {
    const isSame = order?.place === place;
    order = { place, isRising: isSame ? !order.isRising : !columns[place].isNumber };
    for (const [other, head] of heads.entries()) {
      if (other === place) head.setAttribute("aria-sort", order.isRising ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    fill();
  };
  const fill = () => {
    let found = search && sought ? rows.filter((row) => search(row).toLowerCase().includes(sought)) : rows;
    if (order) {
      const value = columns[order.place].value;
      const sign = order.isRising ? 1 : -1;
      found = [...found].sort((one, other) => sign * compared(value(one), value(other)));
    }
    body.replaceChildren(...found.slice(0, shownRows).map((row) => make("tr", { class: isMarked(row) && "marked" },
      columns.map((column) => make("td", { class: [column.isNumber && "number", column.isGauge && "gauge", column.isProse && "prose"].filter(Boolean).join(" ") || null }, column.show(row))))));
    more.hidden = found.length <= shownRows;
    more.textContent = `${count(found.length - shownRows)} more`;
  };
  fill();
  const field = search && rows.length > 8 && make("div", { class: "tools" }, make("input", {
    type: "search", placeholder: hint, "aria-label": `${hint}: ${caption}`, input: (event) => { sought = event.target.value.trim().toLowerCase(); fill(); },
  }));
  return make("div", {}, field, make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, make("span", {}, caption)), make("thead", {}, make("tr", {}, heads)), body)), more);
}

function hasText(content) {
  if (Array.isArray(content)) return content.some(hasText);
  return content instanceof Node ? content.textContent !== "" : Boolean(content);
}

/** Compare numbers by size and texts alphabetically. Unknown values come first or last. */
function compared(one, other) {
  if (one === other) return 0;
  if (one === null || one === undefined) return -1;
  if (other === null || other === undefined) return 1;
  return typeof one === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
}
