// The ranks, as a map, as crowds in the same state, and one by one; their groups; and the cost of communication and recording.

const FEW = 16; // up to this number of ranks, each has a row and there is no map
const SHOWN_FIRST = 16; // rows of the table of ranks at first
const SHOWN_MORE = 256; // rows added by a click
const MANY = 256; // above this number of ranks, the cells of the map are smaller

/** A map with a cell for each rank, colored by state, in a box for each node. */
class RankMap {
  constructor(choose) {
    this.cells = new Map();
    this.nodes = new Map();
    this.element = make("div", { class: "map", role: "img", click: (event) => {
      const rank = event.target.dataset?.rank;
      if (rank !== undefined) choose(Number(rank));
    } });
  }

  show(run) {
    const layout = run.ranks.map((row) => [row.rank, row.host]);
    rewrite(this.element, layout, () => this.laidOut(run.ranks));
    this.element.classList.toggle("many", run.ranks.length > MANY);
    this.element.setAttribute("aria-label", run.crowds.map((crowd) => `${crowd.count} ${crowd.state}`).join(", "));
    for (const row of run.ranks) {
      const name = `cell state ${row.state}${row.named ? " named" : ""}`;
      const cell = this.cells.get(row.rank);
      if (cell.className !== name) {
        cell.className = name;
        cell.title = `rank ${row.rank}: ${row.state}`;
      }
    }
  }

  laidOut(rows) {
    this.cells.clear();
    const nodes = new Map();
    for (const row of rows) {
      const cell = make("span", { class: "cell state", "data-rank": row.rank });
      this.cells.set(row.rank, cell);
      if (!nodes.has(row.host)) nodes.set(row.host, []);
      nodes.get(row.host).push(cell);
    }
    return [...nodes].map(([host, cells]) => make("div", { class: "node" }, make("span", { class: "small" }, named(host)), make("div", { class: "cells" }, cells)));
  }
}

/** The section with the map of ranks and the table of crowds. */
class Ranks {
  constructor(choose) {
    this.map = new RankMap(choose);
    this.crowds = new LiveTable("Ranks in the same state", CROWD_COLUMNS);
    this.note = make("p", { class: "small muted" });
    this.element = make("section", { class: "card", "aria-labelledby": "ranks" }, make("h2", { id: "ranks" }, "Ranks"), this.note, this.map.element, this.crowds.element);
  }

  show(run) {
    write(this.note, [
      `${count(run.item.ranks)} of ${count(run.item.world_size)} on ${run.hosts.length === 1 ? run.hosts[0] : counted(run.hosts.length, "node")}.`,
      run.missing ? `No tape of ${ranksNamed(run.missing)} is seen here.` : "",
    ].filter(Boolean).join(" "));
    this.map.show(run);
    this.crowds.show(run.crowds.map((crowd) => [`${crowd.named} ${crowd.state} ${crowd.operation} ${crowd.group}`, crowd]));
  }
}

/** The section with a row for each rank, which can be filtered. */
class EachRank {
  constructor() {
    this.filter = make("input", { type: "search", placeholder: "rank, state, node or line", "aria-label": "Filter ranks", spellcheck: "false", input: () => this.show(this.run) });
    this.more = make("button", { type: "button", click: () => { this.most += SHOWN_MORE; this.show(this.run); } });
    this.rest = make("div", { class: "tools" }, this.more);
    this.most = SHOWN_FIRST;
    this.table = new LiveTable("Each rank", RANK_COLUMNS);
    this.tools = make("div", { class: "tools" }, this.filter);
    this.title = make("h2", { id: "each" });
    this.element = make("section", { class: "card", "aria-labelledby": "each" }, this.title, this.tools, this.table.element, this.rest);
  }

  show(run) {
    if (!run) return;
    this.run = run;
    this.tools.hidden = run.ranks.length <= FEW;
    const wanted = this.filter.value.trim().toLowerCase();
    const found = run.ranks.filter((row) => matches(row, wanted));
    found.sort((one, other) => Number(other.named) - Number(one.named) || one.rank - other.rank);
    const shown = found.slice(0, this.most);
    this.table.show(shown.map((row) => [row.rank, row, row.named]));
    this.rest.hidden = shown.length === found.length;
    write(this.more, `${count(found.length - shown.length)} more`);
  }

  find(rank) {
    this.filter.value = String(rank);
    this.show(this.run);
  }
}

function matches(row, wanted) {
  if (!wanted) return true;
  if (/^\d+$/.test(wanted)) return row.rank === Number(wanted);
  return [row.state, row.host, row.line, row.operation, row.group].some((text) => text.toLowerCase().includes(wanted));
}

/** The section with the table of process groups. */
class Groups {
  constructor() {
    this.table = new LiveTable("Process groups and the progress of their members", GROUP_COLUMNS);
    this.note = make("p", { class: "small muted" });
    this.element = make("section", { class: "card", "aria-labelledby": "groups" }, make("h2", { id: "groups" }, "Groups"), this.table.element, this.note);
  }

  show(run) {
    this.table.show(run.groups.map((group) => [group.key, group, group.stalled]));
    write(this.note, run.groups_left_out ? `${counted(run.groups_left_out, "group")} more.` : "");
  }
}

/** The section with shares of time, losses, and the ranks that came last. */
class Costs {
  constructor() {
    this.facts = make("div");
    this.late = new LiveTable("Ranks that were last to arrive", LATE_COLUMNS);
    this.lateTitle = make("h3", {}, "Last to arrive");
    this.element = make("section", { class: "card", "aria-labelledby": "costs" }, make("h2", { id: "costs" }, "Time and losses"), this.facts, this.lateTitle, this.late.element);
  }

  show(run, live) {
    const pairs = costFacts(run, live);
    rewrite(this.facts, pairs, () => facts(pairs));
    const late = run.lateness.flatMap((group) => group.late.map((one) => ({ group: group.group, of: group.calls, ...one })));
    this.lateTitle.hidden = this.late.element.hidden = late.length === 0;
    this.late.show(late.map((one) => [`${one.group} ${one.rank}`, one]));
  }
}

function costFacts(run, live) {
  const measured = run.ranks.filter((row) => row.communicating !== null);
  const over = (name) => measured.map((row) => row[name]);
  const between = (values) => {
    if (!values.length) return "";
    const [least, most] = [Math.min(...values), Math.max(...values)];
    return Math.round(least * 100) === Math.round(most * 100) ? percent(most) : `${Math.round(least * 100)} to ${Math.round(most * 100)}%`;
  };
  const mean = measured.length ? over("overhead").reduce((sum, one) => sum + one, 0) / measured.length : null;
  return [
    ["communicating", between(over("communicating"))], ["blocked", between(over("blocked"))],
    ["steps a second", measured.length ? Math.max(...over("steps_per_s")).toFixed(1) : ""],
    ["cost of recording", mean === null ? "" : `${(mean * 100).toFixed(mean < 0.01 ? 2 : 1)}%`],
    ["spans dropped", count(live.spans_dropped)], ["records lost", count(run.records_lost)],
  ];
}
