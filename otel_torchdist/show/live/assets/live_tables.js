// Tables that change once a second. Rows and cells are reused, and only changed text is written.

class LiveTable {
  /** Each of `columns` has a name, a class, and a function from a row to text, or to `[key, build]` for elements. */
  constructor(caption, columns) {
    this.columns = columns;
    this.rows = new Map();
    this.body = make("tbody");
    this.heads = columns.map((column) => make("th", { scope: "col", class: column.kind === "number" && "number", title: column.title ?? false, hidden: true }, column.name));
    this.table = make("table", { class: "live" }, make("caption", { class: "visually-hidden" }, caption), make("thead", {}, make("tr", {}, this.heads)), this.body);
    this.element = make("div", { class: "scroll" }, this.table);
  }

  /** Show rows, given as `[key, row]`. A column appears with its first text, and stays: a table that jumps is hard to read. */
  show(list) {
    const keys = new Set(list.map(([key]) => key));
    for (const [key, row] of this.rows) {
      if (keys.has(key)) continue;
      row.remove();
      this.rows.delete(key);
    }
    list.forEach(([key, data, marked], index) => {
      const row = this.rows.get(key) ?? this.made(key);
      row.classList.toggle("marked", Boolean(marked));
      if (this.body.children[index] !== row) this.body.insertBefore(row, this.body.children[index] ?? null);
      this.columns.forEach((column, at) => {
        fill(row.cells[at], column.of(data));
        if (this.heads[at].hidden && row.cells[at].textContent) this.reveal(at);
      });
    });
  }

  reveal(at) {
    this.heads[at].hidden = false;
    for (const row of this.rows.values()) row.cells[at].hidden = false;
  }

  made(key) {
    const row = make("tr", {}, this.columns.map((column, at) => make("td", { class: column.kind ?? false, hidden: this.heads[at].hidden })));
    this.rows.set(key, row);
    return row;
  }
}

function fill(cell, content) {
  if (Array.isArray(content)) rewrite(cell, content[0], content[1]);
  else write(cell, content);
}

/** Show a state as a badge. */
function stateOf(row) {
  return [[row.state, row.named], () => make("span", { class: `badge state ${row.state}${row.named ? " named" : ""}` }, row.state)];
}

function textOf(text) {
  return [text, () => (text ? make("bdi", { class: "name", title: text }, text) : [])];
}

/** Show a share of time with a bar. */
function shareOf(share) {
  if (share === null || share === undefined) return "";
  const rounded = Math.round(share * 100);
  return [rounded, () => meter([{ share, tone: "--series-0" }], `${rounded}%`)];
}

const CROWD_COLUMNS = [
  { name: "ranks", of: (crowd) => crowd.ranks },
  { name: "count", kind: "number", of: (crowd) => count(crowd.count) },
  { name: "state", of: stateOf },
  { name: "age", kind: "number", of: (crowd) => age(crowd.age_s) },
  { name: "operation", of: (crowd) => textOf(crowd.operation) },
  { name: "group", of: (crowd) => textOf(crowd.group) },
  { name: "step", kind: "number", of: (crowd) => (crowd.steps[0] === crowd.steps[1] ? count(crowd.steps[0]) : `${count(crowd.steps[0])} to ${count(crowd.steps[1])}`) },
];

const RANK_COLUMNS = [
  { name: "rank", kind: "number", of: (row) => String(row.rank) },
  { name: "state", of: stateOf },
  { name: "age", kind: "number", title: "time in the operation, or missing in it", of: (row) => age(row.age_s) },
  { name: "operation", of: (row) => textOf(row.operation) },
  { name: "group", of: (row) => textOf(row.group) },
  { name: "where", kind: "line", of: (row) => textOf(row.line) },
  { name: "step", kind: "number", of: (row) => count(row.step) },
  { name: "steps/s", kind: "number", of: (row) => (row.steps_per_s === null ? "" : row.steps_per_s.toFixed(1)) },
  { name: "communicating", kind: "gauge", title: "share of the last 10 s with an operation in flight", of: (row) => shareOf(row.communicating) },
  { name: "blocked", kind: "gauge", title: "share of the last 10 s with a thread inside a call or wait", of: (row) => shareOf(row.blocked) },
  { name: "heartbeat", kind: "number", title: "since its Python threads last ran", of: (row) => (row.heartbeat_s === null ? "" : `${age(row.heartbeat_s)} ago`) },
  { name: "node", of: (row) => textOf(row.host) },
];

const GROUP_COLUMNS = [
  { name: "group", of: (group) => textOf(group.name) },
  { name: "ranks", of: (group) => group.members },
  { name: "size", kind: "number", of: (group) => (group.seen === group.size ? count(group.size) : `${count(group.seen)} of ${count(group.size)} seen`) },
  { name: "backend", of: (group) => textOf(group.backend) },
  { name: "entered by all", kind: "number", of: (group) => count(group.first) },
  { name: "by any", kind: "number", of: (group) => count(group.last) },
  { name: "ended", kind: "number", of: (group) => count(group.ended) },
  { name: "behind", of: (group) => (group.behind ? `${ranksNamed(group.behind)}, ${counted(group.last - group.first, "call")}` : "") },
];

const LATE_COLUMNS = [
  { name: "group", of: (one) => textOf(one.group) },
  { name: "rank", kind: "number", of: (one) => String(one.rank) },
  { name: "last to arrive", kind: "number", of: (one) => `${count(one.calls)} of ${counted(one.of, "call")}` },
  { name: "the others waited", kind: "number", of: (one) => age(one.late_s) },
];
