// Assembles the sections of the report.

/** Build a section with a heading, an anchor, and an entry in the page's list of sections. */
function card(id, title, ...children) {
  const head = title && make("h2", { id: `${id}-title` }, title);
  return make("section", { class: "card", id, "aria-labelledby": title && `${id}-title` }, head, children);
}

const SECTIONS = [
  ["verdict", "Verdict"], ["incidents", "Long waits"], ["ranks", "Ranks"], ["timeline", "Timeline"], ["critical-path", "Critical path"], ["advice", "Advice"],
  ["world", "Parallel world"], ["traffic", "Traffic"], ["steps", "Steps"], ["calls", "Calls"], ["groups", "Groups"],
];

async function showReport() {
  const main = document.getElementById("main");
  const report = await pageData();
  const timeline = timelineCard(report);
  const show = (window) => timeline.show(window);
  document.getElementById("subject").append(named(report.heading.title));
  const cards = [
    headingCard(report), ...conclusionCards(report), incidentCard(report, show), ranksCard(report), timeline.card, pathCard(report), adviceCard(report),
    worldCard(report), trafficCard(report), stepsCard(report), callsCard(report), groupsCard(report),
  ];
  main.replaceChildren(...cards.filter(Boolean));
  main.removeAttribute("aria-busy");
  const links = SECTIONS.filter(([id]) => document.getElementById(id)).map(([id, name]) => make("a", { href: `#${id}` }, name));
  document.getElementById("sections").append(...links);
  document.querySelector(".bar-top").append(theme.button());
}

showReport().catch((error) => {
  document.getElementById("loading").replaceChildren(`This report cannot be read: ${error}. It needs a browser of 2023 or newer.`);
  throw error;
});
