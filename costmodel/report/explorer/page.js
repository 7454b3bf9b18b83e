"use strict";
/* The page of `costmodel explore`: evaluates the trees of catalogue.py in exact rationals. */

const data = JSON.parse(document.getElementById("data").textContent);
const byName = new Map(data.mixers.flatMap((mixer) => [...mixer.aliases, mixer.name].map((name) => [name, mixer])));
const LARGEST = 2n ** 40n;

/* ---- exact rationals: [numerator, denominator] of BigInt, the denominator positive ---- */

function gcd(a, b) {
  if (a < 0n) a = -a;
  while (b) [a, b] = [b, a % b];
  return a;
}
function rational(n, d = 1n) {
  if (d === 1n) return [n, d];
  if (d < 0n) [n, d] = [-n, -d];
  const common = gcd(n, d);
  return common > 1n ? [n / common, d / common] : [n, d];
}
const add = (a, b) =>
  a[1] === 1n && b[1] === 1n ? [a[0] + b[0], 1n] : rational(a[0] * b[1] + b[0] * a[1], a[1] * b[1]);
const times = (a, b) =>
  a[1] === 1n && b[1] === 1n ? [a[0] * b[0], 1n] : rational(a[0] * b[0], a[1] * b[1]);
const over = (a, b) => rational(a[0] * b[1], a[1] * b[0]);
const compare = (a, b) => a[0] * b[1] - b[0] * a[1];
const floored = (a) => (a[0] >= 0n || a[0] % a[1] === 0n ? a[0] / a[1] : a[0] / a[1] - 1n);
const bits = (n) => (n > 0n ? BigInt(n.toString(2).length) : 0n);

function ceilLog2([n, d]) {
  if (n <= 0n) throw new RangeError("ceil_log2 needs a positive number");
  const more = d > 1n ? bits(d) : 0n;
  const whole = ((n << more) + d - 1n) / d;
  return rational(bits(whole - 1n) - more);
}
function power(base, exponent) {
  return exponent < 0 ? over([1n, 1n], power(base, -exponent)) : [base[0] ** BigInt(exponent), base[1] ** BigInt(exponent)];
}
const pick = (sign) => (args) => args.reduce((a, b) => (sign * Number(compare(a, b) > 0n ? 1 : -1) > 0 ? a : b));
const FUNCTIONS = {
  ceil_log2: ([x]) => ceilLog2(x),
  floor_div: ([a, b]) => rational(floored(over(a, b))),
  pow2: ([x]) => (x[0] < 0n ? [1n, 2n ** -x[0]] : [2n ** x[0], 1n]),
  Max: pick(1),
  Min: pick(-1),
};
const coefficients = new Map();
function coefficient(text) {
  if (typeof text === "number") return [BigInt(text), 1n];
  if (!coefficients.has(text)) {
    const [n, d = "1"] = text.split("/");
    coefficients.set(text, [BigInt(n), BigInt(d)]);
  }
  return coefficients.get(text);
}

/* ---- trees at sizes ---- */

class Exact {
  /* Values of polynomials, functions and answers at sizes: letter or role -> BigInt. */
  constructor(sizes) {
    this.sizes = sizes;
    this.known = new Map();
  }
  cached(kind, place, make) {
    const key = kind + place;
    if (!this.known.has(key)) this.known.set(key, make());
    return this.known.get(key);
  }
  atom(atom) {
    if (typeof atom === "string") {
      if (!(atom in this.sizes)) throw new RangeError(`no value for ${atom}`);
      return [this.sizes[atom], 1n];
    }
    return this.cached("f", atom, () => {
      const [name, ...args] = data.functions[atom];
      return FUNCTIONS[name](args.map((p) => this.poly(p)));
    });
  }
  poly(place) {
    return this.cached("p", place, () => {
      let total = [0n, 1n];
      for (const [number, ...factors] of data.polys[place]) {
        let term = coefficient(number);
        for (let k = 0; k < factors.length; k += 2) term = times(term, power(this.atom(factors[k]), factors[k + 1]));
        total = add(total, term);
      }
      return total;
    });
  }
  answer(place) {
    return this.cached("a", place, () => {
      const tree = data.answers[place];
      if ("sum" in tree) {
        let total = [0n, 1n];
        for (const [guards, poly] of tree.sum) {
          if (guards.every((guard) => this.poly(guard)[0] >= 0n)) total = add(total, this.poly(poly));
        }
        return total;
      }
      if ("max" in tree) return tree.max.map((p) => this.answer(p)).reduce((a, b) => (compare(a, b) >= 0n ? a : b));
      if ("quotient" in tree) {
        const [above, below] = tree.quotient.map((p) => this.answer(p));
        return below[0] === 0n ? null : over(above, below);
      }
      return null;
    });
  }
}

class Approximate {
  /* The same in floating point, for the map of winners. */
  constructor(sizes) {
    this.sizes = Object.fromEntries(Object.entries(sizes).map(([x, n]) => [x, Number(n)]));
    this.known = new Map();
  }
  atom(atom) {
    if (typeof atom === "string") return this.sizes[atom];
    const [name, ...args] = data.functions[atom];
    const values = args.map((p) => this.poly(p));
    if (name === "ceil_log2") return Math.ceil(Math.log2(values[0]));
    if (name === "floor_div") return Math.floor(values[0] / values[1]);
    if (name === "pow2") return 2 ** values[0];
    return name === "Max" ? Math.max(...values) : Math.min(...values);
  }
  poly(place) {
    if (!this.known.has(place)) {
      let total = 0;
      for (const [number, ...factors] of data.polys[place]) {
        const [n, d] = coefficient(number);
        let term = Number(n) / Number(d);
        for (let k = 0; k < factors.length; k += 2) term *= this.atom(factors[k]) ** factors[k + 1];
        total += term;
      }
      this.known.set(place, total);
    }
    return this.known.get(place);
  }
  answer(place) {
    const tree = data.answers[place];
    if ("sum" in tree) {
      let total = 0;
      for (const [guards, poly] of tree.sum) if (guards.every((g) => this.poly(g) >= -1e-9)) total += this.poly(poly);
      return total;
    }
    if ("max" in tree) return Math.max(...tree.max.map((p) => this.answer(p)));
    if ("quotient" in tree) return this.answer(tree.quotient[0]) / this.answer(tree.quotient[1]);
    return NaN;
  }
}

/* ---- measured points ---- */

const READINGS = [...new Set(data.points.flatMap((point) => Object.keys(point.readings)))];
const UNITS = Object.fromEntries(data.points.flatMap((point) => Object.entries(point.readings).map(([title, [, unit]]) => [title, unit])));
function measuredAt(mixer, reading, letter) {
  /* [size, value, words] of the records of a mixer that differ from the settings in `letter` alone; the words name
     implementation, element type and machine. */
  const fits = (point) => {
    const at = sizesOf(mixer, { [letter]: BigInt(point.sizes[letter]) });
    return Object.entries(point.sizes).every(([x, n]) => !Object.hasOwn(at, x) || at[x] === BigInt(n));
  };
  return data.points
    .filter((point) => named([point.mixer])[0] === mixer.name && point.phase === settings.phase && Object.hasOwn(point.readings, reading))
    .filter((point) => Object.hasOwn(point.sizes, letter) && fits(point))
    .map((point) => [point.sizes[letter], point.readings[reading][0], `${point.implementation}, ${point.dtype}, ${point.machine}`]);
}
function inUnit(v, unit) {
  /* A value with a prefix of its unit: 1.5 ms. */
  if (unit === "1" || v === 0) return v.toPrecision(3);
  const k = Math.max(-3, Math.min(5, Math.floor(Math.log10(Math.abs(v) * (1 + 1e-9)) / 3)));
  return `${Number((v / 1000 ** k).toPrecision(3))} ${["n", "µ", "m", "", "k", "M", "G", "T", "P"][k + 3]}${unit}`;
}

/* ---- settings, kept in the link ---- */

const LETTERS = Object.keys(data.letters);
const isSize = (x) => Object.hasOwn(data.letters, x) || data.mixers.some((mixer) => Object.hasOwn(mixer.own, x));
/* The names of the mixers that are known by some names or aliases, each once. */
const named = (names) => [...new Set(names.filter((name) => byName.has(name)).map((name) => byName.get(name).name))];
/* The measured point whose phase and sizes the page opens with. */
const opening = data.points.find((point) => named([point.mixer]).some((name) => named(data.first).includes(name)) && data.phases.includes(point.phase));
const initial = () => ({
  mixers: named(data.first),
  focus: "",
  forms: {},
  phase: opening?.phase ?? data.phases[0],
  quantity: "total",
  over: "l",
  first: "1",
  last: "65536",
  measured: READINGS[0] ?? "",
  x: "l",
  y: "d",
  // t follows l
  sizes: Object.fromEntries(Object.entries(opening?.sizes ?? {}).filter(([x, n]) => isSize(x) && !(x === "t" && n === opening.sizes.l)).map(([x, n]) => [x, BigInt(n)])),
  types: {},
});
let settings = initial();
/* What the page could not do as asked: letter -> sentence about its box, and [key, sentence, value] of keys of the link that
   are left out; a sentence goes as soon as the reader changes the key's value. */
const refused = new Map();
let leftOut = [];
const EXPECTED = `a whole number from 1 to ${LARGEST}`;

function readLink() {
  settings = initial();
  refused.clear();
  leftOut = [];
  for (const [key, text] of new URLSearchParams(location.hash.slice(1))) {
    const [kind, of] = key.split(/\.(.*)/s);
    const take = (known, expected, set) => (known ? set() : leftOut.push([key, `The link's ${key} = ${text} is left out: expected ${expected}.`]));
    const among = (names) => take(names.includes(text), `one of ${names.join(", ")}`, () => { settings[key] = text; });
    if (key === "mixers") {
      const names = text.split(" ").filter(Boolean);
      const unknown = names.filter((name) => !byName.has(name));
      settings.mixers = named(names);
      if (unknown.length || !names.length) leftOut.push([key, `The link's mixers ${unknown.join(", ") || "are none"}: left out, expected names of this page's list.`]);
    } else if (kind === "form") take(named([of]).length && Object.hasOwn(byName.get(of).forms, text), "a form of a mixer of this page", () => { settings.forms[of] = text; });
    else if (kind === "type") take(Object.hasOwn(data.roles, of) && Object.hasOwn(data.bytes, text), `one of ${Object.keys(data.bytes).join(", ")} for ${Object.keys(data.roles).join(", ")}`, () => { settings.types[of] = text; });
    else if (kind === "size") take(isSize(of) && whole(text) !== null, isSize(of) ? EXPECTED : "a size of a mixer of this page", () => { settings.sizes[of] = whole(text); });
    else if (key === "phase") among(data.phases);
    else if (key === "quantity") among(Object.keys(data.figures));
    else if (key === "measured") among(["", ...READINGS]);
    else if (key === "focus") take(named([text]).length, "a mixer of this page", () => { settings.focus = text; });
    else if (["over", "x", "y"].includes(key)) take(isSize(text), "a size of a mixer of this page", () => { settings[key] = text; });
    else take(["first", "last"].includes(key) && whole(text) !== null, ["first", "last"].includes(key) ? EXPECTED : "a setting of this page", () => { settings[key] = text; });
  }
  if (!settings.mixers.length) settings.mixers = initial().mixers;
  settings.focus = named([settings.focus])[0] ?? settings.mixers[0];
  leftOut = leftOut.map(([key, words]) => [key, words, link().get(key)]);
}
function link() {
  const found = new URLSearchParams({ mixers: settings.mixers.join(" ") });
  for (const key of ["focus", "phase", "quantity", "over", "first", "last", "measured", "x", "y"]) found.set(key, settings[key]);
  for (const [name, form] of Object.entries(settings.forms)) found.set(`form.${name}`, form);
  for (const [role, type] of Object.entries(settings.types)) found.set(`type.${role}`, type);
  for (const [size, value] of Object.entries(settings.sizes)) found.set(`size.${size}`, String(value));
  return found;
}
const writeLink = () => history.replaceState(null, "", `#${link()}`);
function whole(text) {
  const found = /^\s*0*([0-9]{1,13})\s*$/.exec(text);
  const value = found ? BigInt(found[1]) : 0n;
  return value >= 1n && value <= LARGEST ? value : null;
}

/* The form of a mixer that is shown, and its answers in the phase. */
const formOf = (mixer) => (settings.forms[mixer.name] in mixer.forms ? settings.forms[mixer.name] : mixer.default);
const phaseOf = (mixer) => mixer.forms[formOf(mixer)].phases[settings.phase];

function sizesOf(mixer, changed = {}) {
  /* The sizes of a mixer: from its braces, else as asked for, else its own defaults, else everybody's. */
  const found = {};
  const letters = new Set(["b", "l", "d", ...phaseOf(mixer).letters, ...Object.keys(mixer.own)]);
  for (const x of letters) {
    const [, usual] = mixer.own[x] ?? data.letters[x];
    const set = changed[x] ?? settings.sizes[x];
    if (x in mixer.given) found[x] = BigInt(mixer.given[x]);
    else if (set !== undefined) found[x] = set;
    else if (x !== "t" && usual !== null) found[x] = BigInt(usual);
  }
  if (letters.has("t") && found.t === undefined) found.t = found.l ?? 1n;
  for (const role of Object.keys(data.roles)) {
    found[role] = BigInt(data.bytes[settings.types[role] ?? settings.types.activations ?? "fp32"]);
  }
  return found;
}

function lettersOf(place) {
  /* The sizes that a polynomial names, those inside its functions included. */
  return data.polys[place].flatMap(([, ...factors]) => factors.filter((_, k) => k % 2 === 0).flatMap(
    (atom) => (typeof atom === "string" ? [atom] : data.functions[atom].slice(1).flatMap(lettersOf))));
}
function misfit(mixer, exact) {
  /* Why a mixer does not exist at these sizes; "" if it does. */
  for (const [list, fits, need] of [
    [mixer.whole, ([, d]) => d === 1n, "whole"],
    [mixer.powers, ([n, d]) => d === 1n && n > 0n && (n & (n - 1n)) === 0n, "a power of two"],
  ]) {
    for (const place of list) {
      if (!lettersOf(place).every((x) => x in exact.sizes)) continue;
      const value = exact.poly(place);
      if (!fits(value)) return `${polyText(place)} = ${shownExact(value)} must be ${need}`;
    }
  }
  for (const [size, bound] of mixer.bounds) {
    if (![size, bound].flatMap(lettersOf).every((x) => x in exact.sizes)) continue;
    if (compare(exact.poly(size), exact.poly(bound)) > 0n) return `${polyText(size)} = ${shownExact(exact.poly(size))} must be at most ${polyText(bound)} = ${shownExact(exact.poly(bound))}`;
  }
  return "";
}
function refusal(mixer, figure, exact) {
  /* Why a mixer has no value of a figure at sizes; "" if it has one. */
  const phase = phaseOf(mixer);
  if (!(figure in phase.figures)) return `${figure} does not exist in the phase ${settings.phase}`;
  const tree = data.answers[phase.figures[figure]];
  const unfit = misfit(mixer, exact) || (tree.reason ?? "");
  if (unfit || data.figures[figure][5]) return unfit;
  return phase.beyond.find(([, guards]) => guards.every((g) => exact.poly(g)[0] >= 0n))?.[0] ?? "";
}
function value(mixer, figure, exact) {
  /* A figure at sizes: {value} (a rational), or {reason}. */
  const reason = refusal(mixer, figure, exact);
  if (reason) return { reason };
  const found = exact.answer(phaseOf(mixer).figures[figure]);
  return found === null ? { reason: "nothing to divide by: the other value is 0" } : { value: found };
}

/* ---- numbers and formulas as text and as MathML ---- */

const grouped = (n) => n.toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",");
const shownExact = ([n, d]) => (d === 1n ? grouped(n) : `${grouped(n)}/${grouped(d)}`);
function shown(found, kind) {
  if (kind !== "ratio" || found[1] === 1n) return shownExact(found);
  return (Number(found[0]) / Number(found[1])).toPrecision(4);
}
function polyText(place) {
  return data.polys[place]
    .map(([number, ...factors]) => {
      const parts = typeof number === "number" && number === 1 && factors.length ? [] : [String(number)];
      let text = parts.join("");
      for (let k = 0; k < factors.length; k += 2) {
        const [atom, p] = [factors[k], factors[k + 1]];
        const name = typeof atom === "string" ? atom : `${data.functions[atom][0]}(…)`;
        const raised = Math.abs(p) === 1 ? name : `${name}^${Math.abs(p)}`;
        text += p < 0 ? `${text ? "" : "1"}/${raised}` : `${text && !text.endsWith("/") ? "·" : ""}${raised}`;
      }
      return text || "1";
    })
    .join(" + ");
}
const mi = (x) => `<mi>${x}</mi>`;
const row = (...parts) => `<mrow>${parts.join("")}</mrow>`;
const mo = (x) => `<mo>${x}</mo>`;
function atomMath(atom) {
  if (typeof atom === "string") return atom in data.roles ? `<msub><mi>β</mi><mi>${atom[0]}</mi></msub>` : mi(atom);
  const [name, ...args] = data.functions[atom];
  const inside = args.map(polyMath);
  if (name === "ceil_log2") return row(mo("⌈"), "<msub><mi>log</mi><mn>2</mn></msub>", row(mo("("), inside[0], mo(")")), mo("⌉"));
  if (name === "floor_div") return row(mo("⌊"), `<mfrac>${inside[0]}${inside[1]}</mfrac>`, mo("⌋"));
  if (name === "pow2") return `<msup><mn>2</mn>${inside[0]}</msup>`;
  return row(mi(name.toLowerCase()), mo("("), inside.join(mo(",")), mo(")"));
}
function guardMath(place) {
  /* A guard g >= 0 with its negative terms on the other side. */
  const terms = data.polys[place];
  const isNegative = ([number]) => coefficient(number)[0] < 0n;
  const flipped = terms.filter(isNegative).map(([number, ...factors]) => [String(number).slice(1), ...factors]);
  return row(termsMath(terms.filter((term) => !isNegative(term))), mo("≥"), termsMath(flipped));
}
const polyMath = (place) => termsMath(data.polys[place]);
function termsMath(terms) {
  if (!terms.length) return "<mn>0</mn>";
  const shownTerms = terms.map(([number, ...factors], at) => {
    const [n, d] = coefficient(number);
    const above = [], below = [];
    const size = n < 0n ? -n : n;
    for (let k = 0; k < factors.length; k += 2) {
      const p = factors[k + 1], base = atomMath(factors[k]);
      (p > 0 ? above : below).push(Math.abs(p) === 1 ? base : `<msup>${base}<mn>${Math.abs(p)}</mn></msup>`);
    }
    if (size !== 1n || !above.length) above.unshift(`<mn>${grouped(size)}</mn>`);
    if (d !== 1n) below.unshift(`<mn>${grouped(d)}</mn>`);
    const space = '<mspace width="0.12em"/>';
    const body = below.length ? `<mfrac>${row(...above)}${row(...below)}</mfrac>` : above.join(space);
    return (n < 0n ? mo("−") : at ? mo("+") : "") + body;
  });
  return row(...shownTerms);
}
function answerMath(place) {
  const tree = data.answers[place];
  if ("quotient" in tree) return `<mfrac>${answerMath(tree.quotient[0])}${answerMath(tree.quotient[1])}</mfrac>`;
  if ("max" in tree) return tree.max.length === 1 ? answerMath(tree.max[0]) : row(mi("max"), mo("("), tree.max.map(answerMath).join(mo(",")), mo(")"));
  if (!tree.sum.length) return "<mn>0</mn>";
  const pieces = tree.sum.map(([guards, poly]) => {
    if (!guards.length) return polyMath(poly);
    const when = guards.map(guardMath).join("<mtext>\u00a0and\u00a0</mtext>");
    return row(mo("["), polyMath(poly), "<mtext>\u00a0if\u00a0</mtext>", when, mo("]"));
  });
  return row(...pieces.flatMap((piece, k) => (k ? [mo("+"), piece] : [piece])));
}
function formulaMath(place) {
  const text = answerMath(place);
  return text.length > 60000 ? "<em>a formula too long to typeset; its values are exact</em>" : `<math>${text}</math>`;
}

/* ---- the page ---- */

const $ = (id) => document.getElementById(id);
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, content] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), content);
    else if (content !== false && content !== null) made.setAttribute(key, content === true ? "" : content);
  }
  made.append(...children);
  return made;
}
const colour = (k) => getComputedStyle(document.documentElement).getPropertyValue(`--c${k % data.colours}`).trim();
const chosen = () => settings.mixers.map((name) => byName.get(name));
const label = (figure) => `${data.figures[figure][0]}${data.figures[figure][2] ? ` (${data.figures[figure][2]})` : ""}`;

function drawList() {
  const word = $("search").value.trim().toLowerCase();
  const family = $("family").value;
  const found = data.mixers.filter((mixer) => {
    const text = [mixer.name, mixer.title, mixer.idea, mixer.source, mixer.group, ...mixer.aliases].join(" ").toLowerCase();
    return (!family || mixer.group === family) && text.includes(word);
  });
  $("found").textContent = `${found.length} of ${data.mixers.length} mixers`;
  $("mixers").replaceChildren();
  let group = "";
  for (const mixer of found) {
    if (mixer.group !== group) {
      group = mixer.group;
      $("mixers").append(element("li", { class: "group" }, group));
    }
    const box = element("input", { type: "checkbox", id: `show-${mixer.name}`, "aria-label": `compare ${mixer.name}`,
      onchange: (event) => {
        settings.mixers = event.target.checked ? [...settings.mixers, mixer.name] : settings.mixers.filter((name) => name !== mixer.name);
        if (!settings.mixers.length) { settings.mixers = [mixer.name]; event.target.checked = true; }
        draw();
      } });
    box.checked = settings.mixers.includes(mixer.name);
    const open = element("button", { type: "button", class: "name", title: mixer.idea, "aria-current": String(mixer.name === settings.focus),
      onclick: () => { settings.focus = mixer.name; draw(); $("card").scrollIntoView({ block: "start" }); } }, mixer.called);
    $("mixers").append(element("li", {}, box, open));
  }
}

function sizeInput(letter, name, current, hint, near) {
  /* A slider over powers of two and a box for any whole number; an empty box asks for the defaults in `hint`. */
  const id = `size-${letter}`;
  const box = element("input", { type: "number", id, min: 1, max: String(LARGEST), value: current, placeholder: hint });
  const slider = element("input", { type: "range", min: 0, max: letter === "b" ? 12 : 21, step: 1, "aria-label": `${letter} of ${name}, slider` });
  const place = (value) => { slider.value = String(Math.round(Math.log2(Number(value)))); };
  place(near);
  const set = (value) => {
    refused.delete(letter);
    box.setAttribute("aria-invalid", "false");
    if (value === null) delete settings.sizes[letter];
    else settings.sizes[letter] = value;
    drawCosts();
  };
  slider.addEventListener("input", () => { const value = 2n ** BigInt(slider.value); box.value = String(value); set(value); });
  box.addEventListener("input", () => {
    const value = whole(box.value);
    const wrong = value === null && (box.value !== "" || box.validity.badInput);
    box.setAttribute("aria-invalid", String(wrong));
    if (wrong) { refused.set(letter, `Size ${letter}: expected ${EXPECTED}${box.value && `, got ${box.value}`}. The page has no numbers until then.`); drawCosts(); return; }
    place(value ?? near);
    set(value);
  });
  return element("div", { class: "size" }, element("label", { for: id }, element("b", {}, letter), ` ${name}`), slider, box);
}
/* The meanings of a size in some mixers: one if they agree; else everybody's, then each other one with its mixers. */
function meaning(x, mixers = chosen()) {
  const having = mixers.filter((mixer) => x in sizesOf(mixer));
  const usual = data.letters[x]?.[0];
  const called = new Map();
  for (const mixer of having) {
    const [words] = mixer.own[x] ?? data.letters[x];
    called.set(words, [...(called.get(words) ?? []), mixer.called]);
  }
  if (called.size < 2) return called.keys().next().value ?? usual ?? data.mixers.find((mixer) => x in mixer.own).own[x][0];
  const words = [...called.keys()].sort((a, b) => (b === usual) - (a === usual));
  return words.map((one) => (one === usual ? one : `${one} (${called.get(one).join(", ")})`)).join("; ");
}
/* The first meaning of a size, for an axis. */
function shortMeaning(x) {
  const [first, ...others] = meaning(x).split("; ");
  return others.length ? `${first}, and others` : first;
}
function openSizes(mixers) {
  /* The letters that the reader sets: those that the braces of some mixer leave open; usual ones first. */
  const open = new Set(mixers.flatMap((mixer) => Object.keys(sizesOf(mixer)).filter((x) => !(x in data.roles) && !(x in mixer.given))));
  return [...LETTERS.filter((x) => open.delete(x)), ...open];
}
function drawSizes() {
  refused.clear();  // new boxes hold the sizes that were taken
  // the mixer whose equations are shown follows the sliders too, ticked or not
  const mixers = [...new Set([...chosen(), byName.get(settings.focus)])];
  $("sizes").replaceChildren(...openSizes(mixers).map((x) => {
    const having = mixers.filter((mixer) => x in sizesOf(mixer) && !(x in mixer.given));
    const usual = [...new Set(having.map((mixer) => sizesOf(mixer)[x]))];
    const one = x in settings.sizes || (usual.length === 1 && x !== "t");
    const hint = x === "t" ? "l" : usual.join(", ");
    return sizeInput(x, meaning(x, having), one ? String(usual[0]) : "", hint, usual[0]);
  }));
}

function drawTable() {
  const phase = settings.phase;
  const figures = Object.keys(data.figures).filter((name) => data.figures[name][4].includes(phase));
  const rows = chosen().map((mixer) => {
    const exact = new Exact(sizesOf(mixer));
    return [mixer, figures.map((figure) => value(mixer, figure, exact))];
  });
  // a column of zeros tells nothing apart, and a column without an answer is one note
  const answered = figures.filter((figure, k) => rows.some(([, found]) => found[k].value && found[k].value[0] !== 0n));
  const kept = answered.length ? answered : [settings.quantity];  // says why there is no answer
  const head = element("tr", {}, element("th", { scope: "col" }, "mixer"), ...kept.map((figure) => element("th", { scope: "col", title: data.figures[figure][1] }, label(figure))));
  const notes = new Map();
  const body = rows.map(([mixer, found], at) => {
    const cells = kept.map((figure) => {
      const { value: number, reason } = found[figures.indexOf(figure)];
      if (reason) {
        const key = `${mixer.name}: ${reason}`;
        notes.set(key, [...(notes.get(key) ?? []), figure]);
        return element("td", { title: reason }, "–");
      }
      return element("td", { "data-figure": figure }, shown(number, data.figures[figure][3]));
    });
    const swatch = element("span", { class: "swatch", style: `background:${colour(at)}` });
    return element("tr", { "data-mixer": mixer.name }, element("th", { scope: "row" }, swatch, mixer.called), ...cells);
  });
  const words = `Phase ${phase}; exact counts at the sizes above.`;
  $("costs").replaceChildren(element("caption", {}, words), element("thead", {}, head), element("tbody", {}, ...body));
  $("notes").replaceChildren(...[...notes].map(([reason, columns]) => element("p", { class: "note" }, `– ${reason} (${columns.length} ${columns.length === 1 ? "column" : "columns"})`)));
}

function along(letter, first, last, count) {
  /* Whole sizes, evenly spaced on a logarithmic axis. */
  const [low, high] = [Math.log2(Number(first)), Math.log2(Number(last))];
  const found = new Set();
  for (let k = 0; k < count; k++) found.add(Math.round(2 ** (low + ((high - low) * k) / (count - 1))));
  return [...found].map(BigInt);
}
function fittingSizes(letter, mixers, first, last, count) {
  /* Sizes at which every mixer exists: multiples of what the others need, where there are any. */
  const fits = (n) => mixers.every((mixer) => !misfit(mixer, new Exact(sizesOf(mixer, { [letter]: n }))));
  const found = along(letter, first, last, count);
  for (const unit of [1n, 8n, 16n, 64n, 128n, 256n]) {
    const tried = [...new Set(found.map((n) => ((n + unit - 1n) / unit) * unit))].filter((n) => n <= last);
    const kept = tried.filter(fits);
    if (kept.length > tried.length / 2 && kept.length > 1) return kept;
  }
  const powers = Array.from({ length: 41 }, (_, k) => 2n ** BigInt(k)).filter((n) => n >= first && n <= last);
  return powers.filter(fits);
}

let plot = null;
function drawChart() {
  const letter = settings.over;
  const mixers = chosen();
  const [first, last] = [whole(settings.first) ?? 1n, whole(settings.last) ?? 65536n];
  const points = mixers.map((mixer) => (settings.measured ? measuredAt(mixer, settings.measured, letter) : []));
  const fitting = first < last ? fittingSizes(letter, mixers, first, last, 49) : [];
  const sizes = [...new Set([...fitting, ...points.flat().map(([size]) => BigInt(size))])].sort((a, b) => Number(a - b));
  const reasons = new Set();
  const series = mixers.map((mixer) =>
    sizes.map((n) => {
      const found = value(mixer, settings.quantity, new Exact(sizesOf(mixer, { [letter]: n })));
      if (found.reason) reasons.add(`${mixer.name}: ${found.reason}`);
      const number = found.reason ? null : Number(found.value[0]) / Number(found.value[1]);
      return number === 0 ? null : number;
    }));
  plot?.destroy();
  plot = null;
  $("chart").replaceChildren();
  const unit = UNITS[settings.measured];
  const measured = mixers.flatMap((mixer, k) =>
    [...new Set(points[k].map(([, , words]) => words))].map((words, j) => ({
      // the implementations of a mixer share its colour: filled, hollow, larger, ...
      series: { label: `${mixer.called} ${words}`, class: j > 1 ? "points large" : "points", scale: "measured", stroke: colour(k), paths: () => null, points: { show: true, size: 8 + 4 * Math.floor(j / 2), stroke: colour(k), fill: j % 2 ? "transparent" : colour(k) } },
      values: sizes.map((n) => points[k].find(([size, , which]) => BigInt(size) === n && which === words)?.[1] ?? null),
    })));
  const drawn = series.some((values) => values.some((v) => v !== null));
  const title = `${label(settings.quantity)} along ${letter}, ${shortMeaning(letter)}, phase ${settings.phase}`;
  $("chart").setAttribute("aria-label", `${title}: ${mixers.map((m) => m.name).join(", ")}`);
  if (settings.measured && !measured.length) reasons.add(`no record of these mixers has ${settings.measured} at the other sizes above`);
  $("chart-note").textContent = drawn ? [...reasons].slice(0, 4).join("; ") : `nothing to draw: ${[...reasons].slice(0, 3).join("; ") || "no size in this range fits the mixers"}`;
  if (!drawn) return;
  const ink = getComputedStyle(document.body).color;
  const line = getComputedStyle(document.documentElement).getPropertyValue("--line").trim();
  const short = (v) => (v >= 1e15 ? v.toExponential(0) : v >= 1 ? new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(v) : String(v));
  const isPower = (v, base) => { const exponent = Math.log(v) / Math.log(base); return Math.abs(exponent - Math.round(exponent)) < 1e-9; };
  const decades = (base) => (_, splits) => splits.map((v) => (isPower(v, base) ? v : null));
  const small = (v) => (v === null ? "–" : inUnit(v, unit));
  const axis = (text, base) => ({ stroke: ink, grid: { stroke: line, width: 1, filter: decades(base) }, ticks: { stroke: line, width: 1, filter: decades(base) }, label: text, labelSize: 22, size: 62, values: (_, splits) => splits.map((v) => (v === null ? "" : short(v))) });
  const dashes = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
  const borders = ["solid", "dashed", "dotted", "double"];
  const markers = {
    width: (_, n) => (n > mixers.length ? 2 : 3),
    dash: (_, n) => (n > mixers.length ? "solid" : borders[Math.floor((n - 1) / 2) % 4]),
    stroke: (_, n) => (n > mixers.length ? measured[n - 1 - mixers.length].series.stroke : colour(n - 1)),
    fill: (_, n) => (n > mixers.length ? measured[n - 1 - mixers.length].series.points.fill : "transparent"),
  };
  plot = new uPlot({
    width: Math.min($("chart").clientWidth || 640, 960), height: 380,
    scales: { x: { time: false, distr: 3, log: 2 }, y: { distr: 3, log: 10 }, measured: { distr: 3, log: 10 } },
    axes: [{ ...axis(`${letter}: ${shortMeaning(letter)}`, 2), size: 40 }, axis(label(settings.quantity), 10),
      ...(measured.length ? [{ ...axis(`measured ${settings.measured}`, 10), scale: "measured", side: 1, grid: { show: false }, values: (_, splits) => splits.map((v) => (v === null ? "" : inUnit(v, unit))) }] : [])],
    series: [{ label: letter }, ...mixers.map((mixer, k) => ({ label: mixer.called, stroke: colour(k), width: 2, dash: dashes[Math.floor(k / 2) % 4], spanGaps: false, points: { show: false }, value: (_, v) => (v === null ? "–" : short(v)) })), ...measured.map(({ series: one }) => ({ ...one, value: (_, v) => small(v) }))],
    legend: { live: true, markers },
  }, [sizes.map(Number), ...series, ...measured.map(({ values }) => values)], $("chart"));
}

function drawMap() {
  const [x, y] = [settings.x, settings.y];
  const mixers = chosen();
  const canvas = $("map"), pen = canvas.getContext("2d");
  const paper = getComputedStyle(document.documentElement).getPropertyValue("--tint").trim();
  const ink = getComputedStyle(document.body).color;
  const [across, upwards] = [x, y].map((letter) => fittingSizes(letter, mixers, 1n, letter === "b" ? 1024n : 2n ** 17n, 35));
  const [columns, rows] = [across.length, upwards.length];
  // as wide as the page has room for, so that the words keep their size on a narrow screen; a hidden
  // page has no room, and a map needs some beside its words
  const wide = Math.max(240, Math.min(660, canvas.parentElement.clientWidth)), high = Math.round((wide * 2) / 3), dense = devicePixelRatio;
  [canvas.width, canvas.height] = [wide, high].map((size) => Math.round(size * dense));
  canvas.style.width = `${wide}px`;
  pen.scale(dense, dense);
  const left = 62, bottom = 46, width = wide - left - 8, height = high - bottom - 8;
  const wins = new Map();
  pen.fillStyle = paper;
  pen.fillRect(0, 0, wide, high);
  for (let i = 0; i < columns; i++) {
    for (let j = 0; j < rows; j++) {
      const changed = { [x]: across[i], [y]: upwards[j] };
      const won = x === y ? null : winner(mixers, changed);
      if (won === null) continue;
      wins.set(won, (wins.get(won) ?? 0) + 1);
      pen.fillStyle = colour(won);
      pen.fillRect(left + (width * i) / columns, 8 + height - (height * (j + 1)) / rows, width / columns - 1, height / rows - 1);
    }
  }
  pen.fillStyle = ink;
  pen.font = "13px system-ui, sans-serif";
  pen.textAlign = "center";
  const [stepX, stepY] = [Math.ceil((48 * columns) / width), Math.ceil((24 * rows) / height)];
  for (let i = 0; i < columns; i += stepX) pen.fillText(compact(across[i]), left + (width * (i + 0.5)) / columns, high - 28);
  pen.fillText(`${x}: ${shortMeaning(x)}`, left + width / 2, high - 8);
  pen.textAlign = "right";
  for (let j = 0; j < rows; j += stepY) pen.fillText(compact(upwards[j]), left - 6, 12 + height - (height * (j + 0.5)) / rows);
  pen.save();
  pen.translate(14, 8 + height / 2);
  pen.rotate(-Math.PI / 2);
  pen.textAlign = "center";
  pen.fillText(`${y}: ${shortMeaning(y)}`, 0, 0);
  pen.restore();
  const cells = columns * rows;
  $("map-key").replaceChildren(...mixers.map((mixer, k) => element("li", {}, element("span", { class: "swatch", style: `background:${colour(k)}` }), `${mixer.called}: ${Math.round((100 * (wins.get(k) ?? 0)) / cells)} % of the map`)));
  $("map-note").textContent = x === y ? "choose two different sizes" : `${label(settings.quantity)}, phase ${settings.phase}; empty where a mixer does not exist at the sizes. Near ties are compared exactly.`;
  canvas.setAttribute("aria-label", `Map over ${x} and ${y} of the mixer with the least ${data.figures[settings.quantity][0]}: ${mixers.map((m, k) => `${m.name} ${wins.get(k) ?? 0} of ${cells} points`).join(", ")}`);
}
const compact = (n) => new Intl.NumberFormat("en", { notation: "compact" }).format(Number(n));
function winner(mixers, changed) {
  /* The place of the mixer with the least, of equal ones the first; null where one does not exist. */
  const found = [];
  for (const mixer of mixers) {
    const sizes = sizesOf(mixer, changed);
    const phase = phaseOf(mixer);
    const place = phase.figures[settings.quantity];
    const exact = new Exact(sizes);
    if (refusal(mixer, settings.quantity, exact)) return null;
    found.push([new Approximate(sizes).answer(place), exact, place]);
  }
  let best = 0;
  for (let k = 1; k < found.length; k++) {
    const [a, b] = [found[best][0], found[k][0]];
    const near = Math.abs(a - b) <= 1e-9 * Math.max(Math.abs(a), Math.abs(b));
    const less = near ? compare(found[k][1].answer(found[k][2]), found[best][1].answer(found[best][2])) < 0n : b < a;
    if (less) best = k;
  }
  return best;
}

function drawCard() {
  const mixer = byName.get(settings.focus);
  const form = formOf(mixer);
  const phase = phaseOf(mixer);
  const exact = new Exact(sizesOf(mixer));
  const forms = Object.keys(mixer.forms);
  const choose = element("select", { id: "form", onchange: (event) => { settings.forms[mixer.name] = event.target.value; draw(); } },
    ...forms.map((name) => element("option", { value: name, selected: name === form }, name)));
  const equations = mixer.forms[form].equations.map(([text, ranges, cite]) => {
    const left = element("div", { tabindex: 0, role: "group", "aria-label": "equation" });
    left.innerHTML = data.texts[text];
    const right = element("div", { class: "ranges", tabindex: 0, role: "group", "aria-label": "ranges" });
    right.innerHTML = ranges.map((place) => data.texts[place]).join(", ") + (cite ? ` <span>${cite.replace(/</g, "&lt;")}</span>` : "");
    return element("div", { class: "equation" }, left, right);
  });
  const list = element("dl");
  const entry = (term, ...content) => { const dd = element("dd", { tabindex: 0 }, ...content); list.append(element("dt", {}, term), dd); return dd; };
  for (const figure of Object.keys(phase.figures)) {
    const tree = data.answers[phase.figures[figure]];
    if ("reason" in tree) { entry(label(figure), `none: ${tree.reason}`); continue; }
    if ("sum" in tree && !tree.sum.length) continue;
    const found = value(mixer, figure, exact);
    const dd = entry(label(figure), "");
    dd.innerHTML = `${formulaMath(phase.figures[figure])}`;
    dd.append(` = ${found.reason ? found.reason : shown(found.value, data.figures[figure][3])}`);
  }
  if (Object.keys(phase.figures).some((name) => /bytes/.test(data.figures[name][2]))) {
    entry("β", `bytes of an element of ${Object.entries(data.roles).map(([role, words]) => `${words} (${role[0]})`).join(", ")}`);
  }
  entry("Order of growth").innerHTML = data.texts[phase.order];
  entry("Critical path", data.texts[phase.path]);
  const about = [`${mixer.idea}.`, mixer.source && `Source: ${mixer.source}.`, mixer.aliases.length ? `Also called ${mixer.aliases.join(", ")}.` : ""].filter(Boolean).join(" ");
  $("card").replaceChildren(
    element("h2", { id: "h-card" }, `${mixer.title} (${mixer.name})`),
    element("p", {}, about),
    element("div", { class: "row" }, element("label", { for: "form" }, "Form"), choose, element("span", { class: "note" }, `${forms.length} ${forms.length === 1 ? "form" : "forms of one function"}`)),
    ...(equations.length ? [element("h3", {}, "Equations"), ...equations] : []),
    element("h3", {}, `Answers, phase ${settings.phase}`),
    element("p", { class: "note" }, `At ${Object.entries(exact.sizes).filter(([x]) => x.length === 1).map(([x, size]) => `${x} = ${size}`).join(", ")}; the sliders above set the sizes.`), list);
}

let waiting = 0;
function drawCosts() {
  const current = link();
  leftOut = leftOut.filter(([key, , value]) => current.get(key) === value);
  $("refused").replaceChildren(...[...refused.values(), ...leftOut.map(([, words]) => words)].map((words) => element("p", {}, words)));
  $("results").hidden = refused.size > 0;
  if (refused.size) return;
  drawTable();
  drawCard();
  writeLink();
  // pictures follow when a slider rests
  clearTimeout(waiting);
  waiting = setTimeout(() => { drawChart(); drawMap(); }, 60);
}
function draw() {
  drawList();
  drawSizes();
  drawChoices();
  drawCosts();
}
function options(select, values, current, words = (x) => x) {
  select.replaceChildren(...values.map((x) => element("option", { value: x, selected: x === current }, words(x))));
}
function drawChoices() {
  options($("phase"), data.phases, settings.phase);
  const figures = Object.keys(data.figures).filter((name) => data.figures[name][4].includes(settings.phase));
  if (!figures.includes(settings.quantity)) settings.quantity = "total";
  options($("quantity"), figures, settings.quantity, label);
  $("with-measured").hidden = !READINGS.length;
  options($("measured"), ["", ...READINGS], settings.measured, (x) => x || "none");
  const letters = openSizes(chosen());
  const free = (key) => letters.find((x) => key !== "y" || x !== settings.x);
  for (const key of ["over", "x", "y"]) if (!letters.includes(settings[key])) settings[key] = free(key) ?? "l";
  const words = (x) => `${x}, ${shortMeaning(x)}`;
  options($("over"), letters, settings.over, words);
  options($("map-x"), letters, settings.x, words);
  options($("map-y"), letters, settings.y, words);
  $("first").value = settings.first;
  $("last").value = settings.last;
  $("dtypes").replaceChildren(...Object.entries(data.roles).map(([role, words_]) => {
    const select = element("select", { id: `type-${role}`, onchange: (event) => { settings.types[role] = event.target.value; draw(); } });
    options(select, Object.keys(data.bytes), settings.types[role] ?? settings.types.activations ?? "fp32");
    return element("label", {}, `${words_} `, select);
  }));
}

$("caption").textContent = `${data.mixers.length} mixers and models, exact at every size. Convention ${data.convention}.`;
options($("family"), ["", ...new Set(data.mixers.map((mixer) => mixer.group))], "", (x) => x || "all families");
$("search").addEventListener("input", drawList);
$("family").addEventListener("change", drawList);
for (const [id, key] of [["phase", "phase"], ["quantity", "quantity"], ["over", "over"], ["measured", "measured"], ["map-x", "x"], ["map-y", "y"]]) {
  $(id).addEventListener("change", (event) => { settings[key] = event.target.value; draw(); });
}
for (const id of ["first", "last"]) {
  $(id).addEventListener("input", (event) => { if (whole(event.target.value)) { settings[id] = event.target.value; drawChart(); writeLink(); } });
}
$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(location.href);
    $("copied").textContent = "copied";
  } catch { $("copied").textContent = "the address bar holds the link"; }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
let resized = 0;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => { drawChart(); drawMap(); }, 150); });
addEventListener("hashchange", () => { readLink(); draw(); });
readLink();
draw();
