// Polls the document about once a second while the page is visible, and draws it. Only the last document is kept.

const EVERY_MS = 1000; // between two polls
const SOON_MS = 300; // between two polls before the first snapshot
const PATIENCE_MS = 10000; // until a poll counts as failed
const SLOWEST_MS = 10000; // longest time between two polls after failures
const LANES = 16; // ranks in the timeline

/** The page: its sections, the choices of the visitor, and the loop that polls the agent. */
class LivePage {
  constructor() {
    this.live = null;
    this.failures = 0;
    this.lostSince = 0;
    this.timer = 0;
    this.asking = false;
    this.chosen = { run: "", ranks: "" };
    this.readAddress();
    const choose = (rank) => this.chooseRank(rank);
    this.connection = new Connection();
    this.banner = new Banner();
    this.findings = new Findings();
    this.ranks = new Ranks(choose);
    this.minute = new Minute(choose);
    this.each = new EachRank();
    this.groups = new Groups();
    this.costs = new Costs();
    this.judge = make("section", { class: "card banner calm", hidden: true }, make("p"));
    this.runs = make("select", { "aria-label": "Job", change: () => this.chooseRun(this.runs.value) });
    this.title = make("span", { class: "muted" });
    document.getElementById("bar").append(make("span", { class: "brand" }, "otel_torchdist"), this.runs, this.title,
      make("span", { class: "right" }, this.connection.state, theme.button()));
    this.parts = [this.findings, this.ranks, this.minute, this.each, this.groups, this.costs];
    document.getElementById("content").append(this.connection.element, this.judge, this.banner.element, ...this.parts.map((part) => part.element));
    document.addEventListener("visibilitychange", () => this.ask());
    addEventListener("hashchange", () => { this.readAddress(); this.ask(); });
    this.show(null);
    this.ask();
  }

  readAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    this.chosen = { run: given.get("run") ?? "", ranks: given.get("ranks") ?? "" };
  }

  writeAddress() {
    const given = new URLSearchParams(Object.entries(this.chosen).filter(([, value]) => value));
    history.replaceState(null, "", `#${given}`);
    this.ask();
  }

  chooseRun(run) {
    this.chosen = { run, ranks: "" };
    this.writeAddress();
  }

  /** Show the operations of a rank and its neighbors. */
  chooseRank(rank) {
    const ranks = this.live.run.ranks.map((row) => row.rank);
    const first = Math.max(0, Math.min(ranks.indexOf(rank) - LANES / 2, ranks.length - LANES));
    this.chosen.ranks = span(ranks.slice(first, first + LANES));
    this.each.find(rank);
    this.writeAddress();
  }

  async ask() {
    clearTimeout(this.timer);
    if (document.hidden || this.asking) return;
    this.asking = true;
    try {
      const query = new URLSearchParams(Object.entries(this.chosen).filter(([, value]) => value));
      const answer = await fetch(`live.json?${query}`, { signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store" });
      if (!answer.ok) throw new Error(`${answer.status}`);
      this.heard(await answer.json());
    } catch {
      this.lost();
    }
    this.asking = false;
    const slower = Math.min(EVERY_MS * 2 ** Math.min(this.failures, 4), SLOWEST_MS);
    this.timer = setTimeout(() => this.ask(), this.live?.at ? slower : Math.max(SOON_MS, this.failures ? slower : 0));
  }

  heard(live) {
    this.failures = 0;
    this.connection.heard(live);
    if (!live.at && this.live?.at && this.live.instance === live.instance) {
      this.live.at = 0; // the agent collects nothing without visitors; keep the old page until it publishes again
      return;
    }
    this.show(live);
  }

  lost() {
    if (!this.failures) this.lostSince = Date.now() / 1000;
    this.failures += 1;
    if (this.failures > 1) this.connection.lost(this.live, this.lostSince);
  }

  show(live) {
    this.live = live;
    const run = live?.run ?? null;
    for (const part of this.parts) part.element.hidden = run === null;
    this.banner.show(live ?? { at: 0, runs: [] });
    this.showRuns(live, run);
    this.showJudge(run);
    if (run === null) return;
    this.arrange(run.ranks.length <= FEW);
    this.ranks.element.hidden = this.isFew;
    this.findings.show(run);
    this.ranks.show(run);
    this.minute.show(run, live.at * 1e9);
    this.each.show(run);
    this.groups.show(run);
    this.costs.show(run, live);
  }

  /** Show few ranks one by one, many as a map and as crowds. */
  arrange(isFew) {
    if (this.isFew === isFew) return;
    this.isFew = isFew;
    write(this.each.title, isFew ? "Ranks" : "Each rank");
    if (isFew) this.minute.element.before(this.each.element);
    else this.costs.element.after(this.each.element);
  }

  showRuns(live, run) {
    const runs = live?.runs ?? [];
    this.runs.hidden = runs.length < 2;
    rewrite(this.runs, runs, () => runs.map((one) => make("option", { value: one.key }, `${one.run || one.directory} · ${counted(one.world_size, "rank")} · user ${one.owner} · ${one.state}`)));
    if (run) this.runs.value = run.item.key;
    write(this.title, run ? `${run.item.run ? `run ${run.item.run}` : "run not known yet"} · ${run.item.directory}` : live ? `agent on ${live.host}` : "");
  }

  /** Name the agent that judges, if it is another one, and link to its page if that can be reached from here. */
  showJudge(run) {
    const judge = run?.judge ?? null;
    this.judge.hidden = judge === null;
    if (judge === null) return;
    rewrite(this.judge.querySelector("p"), judge, () => {
      const node = judge.node ? named(judge.node) : "another node";
      const start = ["The agent on ", node, " judges for all nodes, and its page shows all ranks; this page shows the ranks of its own node. "];
      if (!judge.page) return start;
      if (new URL(judge.page).hostname === "localhost") return [...start, "Open ", make("code", {}, judge.page), " there."];
      return [...start, make("a", { href: judge.page }, "Open its page"), "."];
    });
  }
}

new LivePage();
