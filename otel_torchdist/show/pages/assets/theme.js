// Dark and light: the system's setting until somebody uses the switch. Nothing is stored.

const theme = {
  listeners: new Set(),
  dark: matchMedia("(prefers-color-scheme: dark)"),
  chosen: null,

  /** Whether the page is dark now. */
  isDark() {
    return (this.chosen ?? (this.dark.matches ? "dark" : "light")) === "dark";
  },

  /** Use one of `dark`, `light`; null for the system's setting. */
  choose(scheme) {
    this.chosen = scheme;
    document.documentElement.style.colorScheme = scheme ?? "";
    this.changed();
  },

  /** Call a function whenever colours change: canvases must be drawn again. */
  follow(listener) {
    this.listeners.add(listener);
  },

  changed() {
    colors.clear();
    for (const listener of this.listeners) listener();
  },

  /** The switch. */
  button() {
    const own = make("button", { type: "button", click: () => this.choose(this.isDark() ? "light" : "dark") });
    const show = () => {
      own.textContent = this.isDark() ? "Light" : "Dark";
      own.setAttribute("aria-label", `Switch to ${this.isDark() ? "light" : "dark"} colours`);
    };
    this.follow(show);
    show();
    return own;
  },
};
theme.dark.addEventListener("change", () => theme.changed());

// Paper is white, canvases too.
addEventListener("beforeprint", () => {
  theme.before = theme.chosen;
  theme.choose("light");
});
addEventListener("afterprint", () => theme.choose(theme.before ?? null));

// Canvases need colours as they are: variables such as `light-dark()` are resolved by an element that uses them.
const colors = new Map();

/** The present value of a colour of the style sheet: `color("--ink")`. */
function color(variable) {
  let found = colors.get(variable);
  if (found === undefined) {
    const probe = make("span", { hidden: true });
    probe.style.color = `var(${variable})`;
    document.body.append(probe);
    found = getComputedStyle(probe).color;
    probe.remove();
    colors.set(variable, found);
  }
  return found;
}

/** A canvas of a size in CSS pixels, sharp on any screen; returns its context. */
function prepared(canvas, width, height) {
  const ratio = Math.min(devicePixelRatio || 1, 3);
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** The size of text in CSS pixels. */
function textSize(rem = 0.8) {
  return rem * parseFloat(getComputedStyle(document.documentElement).fontSize);
}
