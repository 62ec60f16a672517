"use strict";
// Names of files and classes come from anyone: they enter the page as text alone.
const $ = (id) => document.getElementById(id);
const images = new Map(); // row -> its element, fetched ahead
let state = null;
let isBusy = false;

function element(tag, text, ...children) {
  const made = document.createElement(tag);
  made.textContent = text;
  made.append(...children);
  return made;
}

function imageOf(row) {
  if (!images.has(row)) {
    const image = new Image();
    image.src = `image/${row}`;
    images.set(row, image);
  }
  return images.get(row);
}

function smallImage(row) {
  const image = new Image();
  image.src = `small/${row}`;
  image.alt = "";
  return image;
}

function say(text) {
  $("message").textContent = text;
  $("message").hidden = !text;
}

function percent(value) {
  return value > 0.99 && value < 1 ? "> 99 %" : `${Math.round(100 * value)} %`;
}

function questionOf(shown) {
  const [first, second] = shown.guess;
  if (shown.label) return [`Labelled ${shown.label}; the others say `, first.class];
  if (!second) return [state.classes.length ? "Which class is this?" : "What is this? Type the name of its class.", ""];
  const lead = first.probability - second.probability;
  return lead < 0.2 ? ["Unsure: perhaps ", first.class] : [lead < 0.6 ? "Probably " : "", first.class];
}

function show(next) {
  state = next;
  const shown = state.shown;
  const facts = [`${state.num_labels.toLocaleString("en")} of ${state.num_images.toLocaleString("en")} labelled`];
  if (state.num_none) facts.push(`${state.num_none.toLocaleString("en")} none of these`);
  if (state.num_skipped) facts.push(`${state.num_skipped.toLocaleString("en")} skipped`);
  $("facts").replaceChildren(...facts.map((fact) => element("li", fact)));
  $("folder").textContent = state.folder;
  document.title = `${state.is_review ? "Review" : "Label"} ${state.folder}`;
  document.querySelector("[data-does=undo]").disabled = state.undo === null;
  document.querySelector("[data-does=undo]").title = state.undo === null ? "" : `Undo ${state.undo}`;
  for (const id of ["shown", "doubt", "typed", "classes", "because"]) $(id).hidden = shown === null;
  for (const does of ["none", "skip"]) document.querySelector(`[data-does=${does}]`).disabled = shown === null;
  $("end").hidden = shown !== null;
  if (shown === null) {
    $("end").textContent = state.is_review
      ? "No label is left that the other images contradict." : "Every image has an answer.";
    $("end").focus();
  } else {
    showImage(shown);
  }
  showClasses();
  lookAhead(state.state);
}

async function lookAhead(number) {
  const row = await ask("next").catch(() => null);
  if (state.state !== number) return;
  for (const old of images.keys()) if (old !== row && !(state.shown && state.shown.row === old)) images.delete(old);
  if (row !== null) imageOf(row);
  $("forecast").textContent = await ask("outlook").catch(() => "");
}

function showImage(shown) {
  if (shown.guess.length < 2) shown.guess = []; // the only class so far is no guess
  const image = imageOf(shown.row);
  image.alt = shown.name;
  image.onerror = () => say(`${shown.name} can no longer be read: skip it.`);
  $("frame").replaceChildren(image);
  $("name").textContent = shown.name;
  const copies = shown.num_copies;
  $("num-copies").textContent = copies ? `and ${copies} near ${copies === 1 ? "copy" : "copies"}, labelled with it` : "";
  $("copies").replaceChildren(...shown.copies.map((row) => element("li", "", smallImage(row))));
  const [before, name] = questionOf(shown);
  $("question").replaceChildren(before, element("b", "", element("bdi", name)));
  $("guess").replaceChildren(...shown.guess.map((guess) => {
    const bar = document.createElement("progress");
    bar.max = 1;
    bar.value = guess.probability;
    const item = element("li", "", element("bdi", guess.class));
    if (guess.probability !== null) item.append(element("span", percent(guess.probability)), bar);
    return item;
  }));
  $("because").hidden = !shown.reasons.length;
  $("reasons").replaceChildren(...shown.reasons.map((reason) =>
    element("li", "", smallImage(reason.row), element("bdi", reason.class))));
}

function showClasses() {
  const typed = $("word").value.trim().toLowerCase();
  const shown = state.shown;
  const buttons = [];
  const fits = ({ name }) => name.toLowerCase().includes(typed);
  const isExact = ({ name }) => name.toLowerCase() === typed;
  const classes = typed ? state.classes.filter(fits).sort((a, b) => isExact(b) - isExact(a)) : state.classes;
  classes.forEach(({ name, count }, place) => {
    const button = element("button", "", element("bdi", name), element("small", count.toLocaleString("en")));
    const key = typed ? (buttons.length ? "" : "Enter") : place < 9 ? String(place + 1) : "";
    if (key) button.prepend(element("kbd", key));
    button.title = name;
    button.classList.toggle("is-guess", Boolean(shown && shown.guess.length && shown.guess[0].class === name));
    button.classList.toggle("is-label", Boolean(shown && shown.label === name));
    button.addEventListener("click", (event) => { if (event.detail) button.blur(); send({ label: name }); });
    buttons.push(button);
  });
  $("classes").replaceChildren(...buttons);
  // What is typed may be a class of its own although others hold it: cat, beside caterpillar.
  $("add").hidden = !typed || state.classes.some(isExact);
  $("add").replaceChildren("New class ", element("b", "", element("bdi", $("word").value.trim())), " ",
    element("kbd", buttons.length ? "Shift+Enter" : "Enter"));
}

async function ask(path, options) {
  const answer = await fetch(path, options);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

async function send(click) {
  if (isBusy || state === null) return;
  isBusy = true;
  say("");
  const focused = document.activeElement && document.activeElement.closest("#classes") ? document.activeElement.title : null;
  try {
    const body = JSON.stringify({ ...click, state: state.state });
    const next = await ask("click", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    $("word").value = "";
    show(next);
    if (next.is_stale) say("Another tab was quicker; this is where it is now.");
    if (focused !== null) [...$("classes").children].find((button) => button.title === focused)?.focus();
  } catch (error) {
    say(error instanceof TypeError ? "Not saved: vit label has ended. Start it again, and open its new address."
      : `Not saved: ${error.message}`);
  } finally {
    isBusy = false;
  }
}

async function refresh() {
  try {
    const next = await ask("state");
    if (state === null || next.state !== state.state) show(next);
  } catch (error) {
    say("vit label has ended. Start it again, and open its new address.");
  }
}

function sendTyped(isNew) {
  const first = $("classes").querySelector("button");
  const typed = $("word").value.trim();
  if (!typed) return;
  $("word").blur();
  send({ label: isNew || !first ? typed : first.title });
}

$("typed").addEventListener("submit", (event) => {
  event.preventDefault();
  sendTyped(false);
});
$("add").addEventListener("click", () => sendTyped(true));
$("word").addEventListener("input", showClasses);
for (const button of document.querySelectorAll("#actions button")) {
  button.addEventListener("click", (event) => {
    if (event.detail) button.blur();
    send({ [button.dataset.does]: true });
  });
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || state === null) return;
  if (event.target === $("word")) {
    if (event.key === "Escape") { $("word").value = ""; $("word").blur(); showClasses(); }
    if (event.key === "Enter" && event.shiftKey) { event.preventDefault(); sendTyped(true); }
    return;
  }
  const action = document.querySelector(`#actions [data-key="${CSS.escape(event.key.toLowerCase())}"]`);
  if (action && !action.disabled) send({ [action.dataset.does]: true });
  else if (/^[1-9]$/.test(event.key) && state.shown && state.classes[event.key - 1]) {
    send({ label: state.classes[event.key - 1].name });
  } else if (event.key === "Enter" && event.target === document.body && state.shown && state.shown.guess.length) {
    send({ label: state.shown.guess[0].class });
  } else if (event.key.toLowerCase() === "t") { event.preventDefault(); $("word").focus(); }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
refresh();
