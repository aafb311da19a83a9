// The server's own page. It needs no network but its server.
"use strict";
let models = [], shown = null;  // shown: {q, source, target, prefix, answer}
const off = [];  // [kind, layer, head] of heads that are switched off

async function ask(path, given, accept) {
  const headers = {"Content-Type": "application/json", ...(accept ? {Accept: accept} : {})};
  const response = await fetch(path, {method: "POST", headers, body: JSON.stringify(given)});
  if (!response.ok) {
    const text = await response.text();
    let message = text;
    try { message = JSON.parse(text).error; } catch { /* it is not ours */ }
    throw new Error(message);
  }
  return response;
}
function complain(text) { $("problem").hidden = !text; $("problem").textContent = text || ""; }

// --- translate -------------------------------------------------------------------------------------------------------------

async function translate(given) {
  complain("");
  $("go").disabled = true;
  const model = models.find(m => m.source === given.source && m.target === given.target);
  const wanted = {...given, beam: +$("beam").value, repetition: true};
  if (model && model.aligns) Object.assign(wanted, {alignment: true, coverage: true});
  if ($("head").value) wanted.attention = $("head").value;
  if (off.length) wanted.heads_off = off;
  try {
    const answer = await stream(wanted);
    shown = {...given, beam: wanted.beam, answer};
    drawAnswer(answer);
  } catch (error) { complain(error.message); }
  $("go").disabled = false;
}

// Server-sent events: certain text and tail, then the whole answer.
async function stream(given) {
  const reader = (await ask("translate", given, "text/event-stream")).body.pipeThrough(new TextDecoderStream()).getReader();
  $("result").hidden = false;
  $("choices").hidden = true;
  for (let buffer = ""; ;) {
    const {done, value} = await reader.read();
    if (done) throw new Error("the connection ended before the translation did; try again");
    buffer += value;
    for (let end; (end = buffer.indexOf("\n\n")) >= 0; buffer = buffer.slice(end + 2)) {
      const data = JSON.parse(buffer.slice(buffer.indexOf("data: ") + 6, end));
      if (buffer.startsWith("event: done")) return data;
      if (buffer.startsWith("event: error")) throw new Error(data.error);
      const tail = make("i", data.tail);
      $("output").replaceChildren(data.text, tail);
    }
  }
}

// --- words and lines -------------------------------------------------------------------------------------------------------

// The words of both sides and the links between them: the alignment, or the weights of the chosen head.
function picture(answer) {
  if ($("head").value && answer.attention && answer.attention.length === 1) {
    const {rows, columns, weights} = answer.attention[0];
    const links = weights.flatMap((row, r) => row.map((w, c) => [c, r, w]).filter(link => link[2] >= .1));
    return {source: columns, target: rows, links, words: false};
  }
  return answer.alignment ? {...answer.alignment, words: true} : {source: [], target: answer.translatedText.split(/\s+/).filter(Boolean), links: [], words: true};
}

function drawAnswer(answer) {
  $("output").textContent = answer.translatedText;
  const flags = [answer.repetition && "it goes round in circles", answer.coverage && answer.coverage.leaves_out && "it may leave out a part of the source", answer.coverage && answer.coverage.leaves_source && "it may not be about the source"].filter(Boolean);
  $("flags").hidden = !flags.length;
  $("flags").textContent = `Be careful with this output: ${flags.join(", ")}.`;
  const view = picture(answer);
  $("from").replaceChildren(...view.source.map(word => { const e = make("span", word); e.dir = "auto"; return e; }));
  $("to").replaceChildren(...view.target.map((word, number) => {
    const e = make("button", word); e.type = "button"; e.dir = "auto";
    e.onpointerenter = e.onfocus = () => point(view, number);
    if (view.words) e.onclick = () => choose(number);
    return e;
  }));
  $("readout").textContent = "";
  drawCurves(view);
}

function drawCurves(view) {
  const high = 28, wide = $("curves").clientWidth || 120, curves = $("curves");
  curves.setAttribute("height", high * Math.max(view.source.length, view.target.length, 1));
  curves.setAttribute("viewBox", `0 0 ${wide} ${curves.getAttribute("height")}`);
  curves.replaceChildren(...view.links.map(([from, to, score]) => {
    const a = (from + .5) * high, b = (to + .5) * high;
    const path = svg("path", {d: `M0 ${a} C${wide / 2} ${a} ${wide / 2} ${b} ${wide} ${b}`, "stroke-opacity": clamp(score, .15, 1)});
    path.dataset.to = to;
    return path;
  }));
}

function point(view, number) {
  const links = view.links.filter(link => link[1] === number).sort((a, b) => b[2] - a[2]), sources = new Set(links.map(link => link[0]));
  [...$("to").children].forEach((e, i) => e.classList.toggle("on", i === number));
  [...$("from").children].forEach((e, i) => e.classList.toggle("on", sources.has(i)));
  for (const path of $("curves").children) path.classList.toggle("on", +path.dataset.to === number);
  const named = links.slice(0, 4).map(([from, , score]) => `“\u2068${view.source[from]}\u2069” (${score.toFixed(2)})`);
  $("readout").textContent = `“\u2068${view.target[number]}\u2069” comes from ${named.join(", ") || "no word of the source"}`;
}

// --- other words -----------------------------------------------------------------------------------------------------------

async function choose(number) {
  complain("");
  try {
    const {q, source, target, prefix, beam} = shown;
    const given = {q, source, target, beam, alternatives_at: number, ...(prefix ? {prefix} : {}), ...(off.length ? {heads_off: off} : {})};
    const {alternatives_at: found} = await (await ask("translate", given)).json();
    $("choices").replaceChildren(...found.choices.map(choice => {
      const button = make("button", choice.word || "(end)"); button.type = "button"; button.title = choice.text;
      button.append(make("em", choice.probability.toFixed(3)));
      button.onclick = () => goOn(choice, number);
      return button;
    }));
    $("choices").hidden = false;
    $("choices").firstChild.focus();
  } catch (error) { complain(error.message); }
}
function goOn(choice, number) {
  const kept = choice.text.match(/\S+/g).slice(0, number + 1), end = kept.reduce((at, word) => choice.text.indexOf(word, at) + word.length, 0);
  const {q, source, target} = shown;
  translate({q, source, target, prefix: choice.text.slice(0, end)});
}

// --- heads -----------------------------------------------------------------------------------------------------------------

function fillHeads() {
  const model = models.find(m => m.source === $("source").value && m.target === $("target").value);
  const options = [new Option("alignment of words", "")];
  const [layers, heads] = model && model.aligns ? model.attention.cross : [0, 0];
  for (let layer = 0; layer < layers; layer++) for (let head = 0; head < heads; head++) options.push(new Option(`layer ${layer}, head ${head}`, `cross.${layer}.${head}`));
  $("head").replaceChildren(...options);
  $("heads").hidden = !layers;
  off.length = 0;
  drawOff();
}
function drawOff() {
  const [kind, layer, head] = $("head").value.split("."), isOff = off.some(each => each.join(".") === $("head").value);
  $("off").hidden = !$("head").value;
  $("off").setAttribute("aria-pressed", isOff);
  $("off").textContent = isOff ? "switch this head on and translate again" : "switch this head off and translate again";
  $("offs").hidden = !off.length;
  $("offs").textContent = `Off: ${off.map(each => `layer ${each[1]}, head ${each[2]}`).join("; ")}`;
  return [kind, +layer, +head];
}

// --- start -----------------------------------------------------------------------------------------------------------------

function theme(name) { document.documentElement.dataset.theme = name; $("theme").textContent = name === "dark" ? "light" : "dark"; }

async function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  theme(dark.matches ? "dark" : "light");
  $("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  const [languages, settings] = await Promise.all(["languages", "frontend/settings"].map(async path => (await fetch(path)).json()));
  models = settings.models;
  const names = new Map(languages.map(language => [language.code, language.name]));
  const fillTargets = () => {
    const {targets} = languages.find(language => language.code === $("source").value);
    $("target").replaceChildren(...targets.filter(code => code !== $("source").value).map(code => new Option(names.get(code), code)));
    fillHeads();
  };
  $("source").replaceChildren(...languages.filter(language => language.targets.length > 1).map(language => new Option(language.name, language.code)));
  $("source").onchange = fillTargets;
  $("target").onchange = fillHeads;
  fillTargets();
  const again = () => { if (shown) { const {q, source, target, prefix} = shown; translate({q, source, target, ...(prefix ? {prefix} : {})}); } };
  $("head").onchange = () => { drawOff(); again(); };
  $("off").onclick = () => {
    const head = drawOff(), at = off.findIndex(each => each.join(".") === head.join("."));
    if (at < 0) off.push(head); else off.splice(at, 1);
    drawOff();
    again();
  };
  $("ask").onsubmit = event => { event.preventDefault(); translate({q: $("q").value, source: $("source").value, target: $("target").value}); };
  $("q").onkeydown = event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit(); };
  $("live").onclick = async () => {
    if (!shown) return;
    try {
      const {q, source, target, prefix, beam} = shown;
      const response = await ask("inspect", {q, source, target, beam, ...(prefix ? {prefix} : {}), ...(off.length ? {heads_off: off} : {})});
      const link = make("a"), address = URL.createObjectURL(await response.blob());
      link.href = address; link.download = "attention.html"; link.click();
      URL.revokeObjectURL(address);
    } catch (error) { complain(error.message); }
  };
  addEventListener("resize", () => { if (shown) drawCurves(picture(shown.answer)); });
}
start().catch(error => complain(error.message));
