// The banner with the current stall, findings, and the state of the connection to the agent.

const STATE_WORDS = { running: "is running", waiting: "waits", stalled: "is stalled", absent: "is absent", stopped: "is stopped",
  unreachable: "is unreachable", starting: "is starting", calling: "waits for a remote call", serving: "serves a remote call",
  finished: "has finished", failed: "has failed", dead: "is dead", followed: "has ended after it", "switched off": "is not recorded any more" };
const STATES_WORDS = { ...STATE_WORDS, running: "are running", waiting: "wait", stalled: "are stalled", absent: "are absent",
  stopped: "are stopped", unreachable: "are unreachable", starting: "are starting", calling: "wait for remote calls", serving: "serve remote calls", finished: "have finished", failed: "have failed", dead: "are dead", followed: "have ended after it", "switched off": "are not recorded any more" };

const LONG_UNITS = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];

/** Format an age in seconds as commands do: `4.3 s`, `3 min 5 s`, `2 h 7 min`, `2 d 4 h`. */
function age(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 100) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const [size, unit, part, partUnit] = LONG_UNITS.find(([size]) => whole >= size);
  return `${Math.floor(whole / size)} ${unit} ${Math.floor((whole % size) / part)} ${partUnit}`;
}

/** Format ranks: `ranks 0-1,3` or `rank 2`. */
function ranksNamed(text) {
  return `${/^\d+$/.test(text) ? "rank" : "ranks"} ${text}`;
}

/** Set an element's text only if it differs, so that the user's selection in it survives. */
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replace an element's children only if the data behind them differ. */
function rewrite(element, key, build) {
  const text = JSON.stringify(key);
  if (element.dataset.shown === text) return;
  element.dataset.shown = text;
  element.replaceChildren(...[build()].flat());
}

/** The first section of the page: whether the run is stalled, by which ranks, and their stacks. */
class Banner {
  constructor() {
    this.title = make("h2", { id: "verdict" });
    this.text = make("div");
    this.facts = make("div");
    this.stacks = make("div");
    this.spoken = make("p", { class: "visually-hidden", role: "status" });
    this.element = make("section", { class: "card banner calm", "aria-labelledby": "verdict" },
      this.title, this.text, this.facts, this.stacks, this.spoken);
  }

  show(live) {
    const run = live.run;
    const stall = run?.stall;
    const [tone, title, sentence] = stall ? stallWords(stall, run) : run ? calmWords(run, live) : emptyWords(live);
    this.element.className = `card banner ${tone}`;
    write(this.title, title);
    rewrite(this.text, sentence, () => verdictText(sentence));
    write(this.spoken, stall ? `${hasEnded(run) ? "Ended" : "Stalled"}: ${stall.kind} ${stall.ranks}` : "");
    document.title = run ? `${stall ? `${stall.kind} ${stall.ranks} · ` : ""}${run.item.run || run.item.directory} · otel_torchdist` : "otel_torchdist";
    const fixed = stall && { ...stall, age_s: 0, text: "", stacks: [] };
    rewrite(this.facts, fixed ?? null, () => (stall ? stallFacts(stall, run) : []));
    const stacks = stall?.stacks ?? [];
    rewrite(this.stacks, stacks.map((one) => ({ ...one, age_s: 0 })), () => stacks.map(stackPart));
    for (const [place, one] of stacks.entries()) {
      showInnermost(this.stacks.children[place].querySelector("pre"));
      const note = this.stacks.children[place].querySelector(".taken");
      if (note) write(note, `taken ${age(one.age_s)} ago`);
    }
  }
}

/** Scroll a new stack to its end: the innermost frame says what the rank does. */
function showInnermost(stack) {
  if (!stack || stack.dataset.scrolled) return;
  stack.dataset.scrolled = "yes";
  stack.scrollTop = stack.scrollHeight;
}

function hasEnded(run) {
  return run.item.state === "ended";
}

/** Describe the ongoing stall, or the stall in which the job has ended. */
function stallWords(stall, run) {
  const since = stall.age_s === null ? "" : ` for ${age(stall.age_s)}`;
  const who = stall.ranks ? `${ranksNamed(stall.ranks)}: ${stall.kind}` : stall.kind;
  return ["bad", hasEnded(run) ? `The job has ended (${who})` : `Stalled${since} (${who})`, stall.text];
}

/** The list of findings other than stalls. */
class Findings {
  constructor() {
    this.list = make("ul", { class: "notes" });
    this.element = make("section", { class: "card", hidden: true, "aria-labelledby": "findings" }, make("h2", { id: "findings" }, "Findings"), this.list);
  }

  show(run) {
    this.element.hidden = run.findings.length === 0;
    rewrite(this.list, run.findings, () => run.findings.map((one) => make("li", {}, withCode(capital(one.text)), " ", make("span", { class: "small muted" }, "trace ", traceOf(one), ", ", pageOf(one, "what to do")))));
  }
}

function traceOf(part) {
  if (!part.trace_url) return make("code", { class: "trace-id" }, part.trace_id);
  return make("a", { href: part.trace_url, rel: "noopener noreferrer", target: "_blank" }, part.trace_id);
}

/** A link to the page on a kind of verdict or finding. */
function pageOf(part, text) {
  return part.docs_url ? make("a", { href: part.docs_url, rel: "noopener noreferrer", target: "_blank" }, text) : text;
}

function stallFacts(stall, run) {
  const judge = run.judge ? [["judged on", named(run.judge.node || "another node")]] : [];
  return facts([
    ["verdict", pageOf(stall, stall.kind)], ["ranks", stall.ranks], ["operation", named(stall.operation)], ["group", stall.group && named(stall.group)],
    ["trace", traceOf(stall)], ...judge,
  ]);
}

const SOURCES = { "stack": "its own thread", "signal": "a signal, while the GIL was held", "open operation": "the operation that it is in",
  "last operation": "its last operation, which has ended" };

function stackPart(one) {
  const head = make("h3", {}, `rank ${one.rank} `, make("span", { class: "muted small" }, "on ", named(one.host)));
  const where = make("p", { class: "small muted" }, one.line ? ["at ", make("code", {}, named(one.line)), ", from "] : "from ",
    SOURCES[one.source] ?? one.source, one.stack ? [", ", make("span", { class: "taken" })] : "");
  return make("div", { class: "stack" }, head, where, one.stack ? make("pre", { tabindex: 0 }, one.stack) : null);
}

function calmWords(run, live) {
  const states = new Map();
  for (const crowd of run.crowds) states.set(crowd.state, (states.get(crowd.state) ?? 0) + crowd.count);
  const parts = [...states].map(([state, number]) => `${count(number)} ${number === 1 ? STATE_WORDS[state] : STATES_WORDS[state]}`);
  const sentence = `Of ${counted(run.item.world_size, "rank")}, ${parts.join(", ")}.`;
  if (states.has("switched off")) return ["warn", "Recording is switched off", `${sentence} The job may go on; no verdict is given on it.`];
  if (hasEnded(run)) return [states.has("dead") || states.has("failed") ? "warn" : "calm", "The job has ended", sentence];
  if (states.has("dead") || states.has("failed")) return ["warn", "Ranks are gone", sentence];
  if (states.has("stalled")) return ["warn", "Waiting for a verdict", sentence];
  return ["good", "No stall", `${sentence} A wait of more than ${age(live.threshold_s)} is a stall.`];
}

function emptyWords(live) {
  if (!live.at) return ["calm", "Reading", "The agent collects what this page shows."];
  if (!live.watches) return ["calm", "Watched elsewhere", "Another process of this node watches the ranks, and serves their page."];
  if (live.hidden) return ["calm", "No job of yours", `${counted(live.hidden, "job")} of other users ${live.hidden === 1 ? "is" : "are"} read here, and shown to them and to root only.`];
  return ["calm", "No ranks", "No rank has a tape. A job appears here with its first process group."];
}

/** The state of the connection to the agent. */
class Connection {
  constructor() {
    this.state = make("span", { class: "connection good" });
    this.element = make("section", { class: "card banner warn connection-lost", role: "alert", hidden: true }, make("h2", {}, "Connection lost"), make("p", { class: "sentence" }));
  }

  heard(live) {
    this.element.hidden = true;
    document.body.classList.remove("stale");
    this.state.className = "connection good";
    write(this.state, live.at ? `live, ${clock(live.at)}` : "connected");
  }

  lost(live, since) {
    document.body.classList.add("stale");
    this.state.className = "connection bad";
    write(this.state, "connection lost");
    if (!this.element.hidden) return;
    this.element.hidden = false;
    const ended = live?.run?.item.state === "ended";
    const why = ended ? "All ranks had ended, and their agent ends soon after them." : "The agent has ended, or cannot be reached: an agent ends after the last rank of its job.";
    write(this.element.querySelector("p"), `No answer since ${clock(since)}. ${why} The data below is from ${live?.at ? clock(live.at) : "no time yet"}. This page keeps trying.`);
  }
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}
