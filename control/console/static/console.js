// Improves pages that work without it: live parts, keys, dialogs, drafts, times. One listener per kind of event serves all.
"use strict";
const root = document.documentElement;
const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

function made(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element[name] = value;
  element.append(...children);
  return element;
}

// Of a read only a part is shown: the message of an action waits for the page that shows it.
async function page(address, options = { headers: { "Tidewheel-Part": "1" } }) {
  const answer = await fetch(address, { cache: "no-store", signal: AbortSignal.timeout(10000), ...options });
  const text = await answer.text();
  if (!(answer.headers.get("content-type") || "").startsWith("text/html")) throw new TypeError("no page");
  return { answer, body: new DOMParser().parseFromString(text, "text/html") };
}

const isSignIn = (found) => $("form[data-sign-in]", found.body) !== null;

// Swapping: what is shown takes on what a new reading of the page has, node by node; what is in use stays.

function inUse(element) {
  const selection = document.getSelection();
  const selected = !selection.isCollapsed && selection.containsNode(element, true);
  return selected || element.contains(document.activeElement) || element.matches(":active")
    || $("details[open], dialog[open]", element) !== null;
}

function sameShape(old, fresh) {
  const [mine, theirs] = [[...old.childNodes], [...fresh.childNodes]];
  return mine.length === theirs.length && mine.every((node, at) => node.nodeName === theirs[at].nodeName);
}

function takeAttributes(old, fresh) {
  for (const { name, value } of [...fresh.attributes]) {
    if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
}

function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType === Node.TEXT_NODE) { if (!inUse(old.parentElement)) old.data = fresh.data; return; }
  if (old.nodeType !== Node.ELEMENT_NODE || old.matches("form:not([data-selection]), dialog")) return;
  if (old.matches("[data-more]")) { // lines of an attempt follow by themselves
    if (old.ariaLabel !== fresh.ariaLabel) old.replaceWith(document.importNode(fresh, true));
    return;
  }
  if (old.matches("tbody[data-rows]")) { morphRows(old, fresh); return; }
  if (old.childNodes.length && sameShape(old, fresh)) {
    takeAttributes(old, fresh);
    const theirs = [...fresh.childNodes];
    [...old.childNodes].forEach((node, at) => morph(node, theirs[at]));
  } else if (!inUse(old)) old.replaceWith(document.importNode(fresh, true));
}

function takeRows(old, rows) {
  const checked = new Set([...old.rows].filter((row) => $(".choice input", row)?.checked).map((row) => row.dataset.key));
  old.replaceChildren(...rows.map((row) => document.importNode(row, true)));
  for (const row of old.rows) if (checked.has(row.dataset.key)) $(".choice input", row).checked = true;
}

// Rows that are new wait behind a button, so that none moves under the pointer; the others change in place. A row that has
// left the list stays, struck out. New rows push the last ones to the next page: these have not left.
function morphRows(old, fresh) {
  const known = new Map([...old.rows].map((row) => [row.dataset.key, row]));
  const rows = [...fresh.rows];
  const added = rows.filter((row) => !known.has(row.dataset.key)).length;
  const waits = added > 0 && (old.dataset.rows === "wait" || old.matches(":hover") || inUse(old));
  if (added > 0 && !waits) { takeRows(old, rows); return; }
  const listed = new Set(rows.flatMap((row) => [row.dataset.key, ...(row.dataset.folded || "").split(" ")]));
  const last = added ? [...old.rows].findLastIndex((row) => listed.has(row.dataset.key)) : old.rows.length;
  [...old.rows].forEach((row, at) => row.classList.toggle("left", !listed.has(row.dataset.key) && at < last));
  for (const row of rows) if (known.has(row.dataset.key)) morph(known.get(row.dataset.key), row);
  const scroll = old.closest(".scroll, table");
  let button = scroll.previousElementSibling;
  if (!button?.matches(".waiting")) {
    if (added === 0) return;
    button = made("button", { type: "button", className: "waiting" });
    scroll.before(button);
  }
  button.hidden = added === 0;
  button.textContent = `${added === rows.length ? `${added}+` : added} new`;
  button.onclick = () => {
    takeRows(old, rows);
    button.remove();
  };
}

function swap(body) {
  $$(".waiting").forEach((button) => button.remove());
  morphMain(body);
  document.title = body.title;
  reveal();
  absoluteTimes();
  document.dispatchEvent(new Event("swapped"));
}

const reveal = () => $$(".needs-script").forEach((element) => { element.hidden = false; });

function morphMain(body) {
  const main = $("main");
  $$(":scope > .stale", main).forEach((element) => element.remove());
  const fresh = $("main", body);
  fresh?.querySelectorAll(":scope > .toast").forEach((note) => note.remove());
  if (fresh) morph(main, fresh);
}

// Live: one stream per visible page; each news makes the page read itself once. A page without a stream reads itself slowly.

const HIDDEN_MS = 10000, LATE_MS = 6000, SILENT_MS = 10000, APART_MS = 1000, REFUSED_MS = 15000, WAKE_MS = 5000;
const live = { stream: null, heard: 0, at: null, stopped: false, reading: false, again: false, read: 0, hiding: 0, refused: 0, waking: 0 };

function openLive() {
  const topics = $("main")?.dataset.live;
  if (!topics || live.stopped || live.stream || live.hiding) return;
  clearTimeout(live.refused);
  if (!live.refused) live.heard = performance.now();
  live.at = live.at || new Date();
  const address = new URL($("body").dataset.live, location.href);
  address.searchParams.set("topics", topics);
  const stream = live.stream = new EventSource(address);
  stream.onopen = () => { live.refused = 0; wake(); };
  stream.addEventListener("beat", hear);
  stream.addEventListener("changed", () => { hear(); refresh(); });
  stream.addEventListener("gone", () => { closeLive(); signInAgain(); });
  stream.onerror = () => {
    if (stream.readyState !== EventSource.CLOSED || live.stream !== stream) return;
    live.refused = setTimeout(readSlowly, live.refused ? REFUSED_MS : 3000);
    closeLive();
  };
  indicate();
}

function readSlowly() {
  if (!live.hiding) refresh().then(openLive);
}

function closeLive() {
  live.stream?.close();
  live.stream = null;
  indicate();
}

function hear() {
  live.heard = performance.now();
  live.at = new Date();
  indicate();
}

async function refresh() {
  if (live.reading || live.stopped) { live.again = live.reading; return; }
  live.reading = true;
  const wait = live.read + APART_MS - performance.now();
  if (wait > 0) await new Promise((done) => setTimeout(done, wait));
  const shown = document.body; // an action may replace it meanwhile
  try {
    const found = await page(location.href);
    if (document.body !== shown) live.again = true;
    else if (isSignIn(found)) { closeLive(); signInAgain(); } else if (found.answer.ok) { swap(found.body); hear(); }
  } catch { /* the indicator shows that nothing was heard */ }
  live.reading = false;
  live.read = performance.now();
  wake();
  if (live.again) { live.again = false; refresh(); }
}

// What the page promises for an instant of the next hour may not have come: no news tells of that.
function wake() {
  clearTimeout(live.waking);
  const soonest = Math.min(...$$("main time").map((each) => new Date(each.dateTime) - Date.now()).filter((each) => each > 0));
  if (live.stream && soonest < 3600000) live.waking = setTimeout(refresh, Math.max(soonest + APART_MS, WAKE_MS));
}

const clock = (instant) => instant.toLocaleTimeString("en-GB", { timeZone: $("body").dataset.zone });

function indicate() {
  const mark = $("#live");
  const { live: topics, every } = $("main")?.dataset ?? {};
  if (!mark || !(topics || every)) return;
  const silence = performance.now() - live.heard;
  const seconds = Math.round(silence / 1000);
  const [state, words] = live.stopped ? ["stopped", `As of ${clock(live.at || new Date())}`]
    : live.hiding ? ["paused", "Paused, tab was hidden"]
      : live.refused && silence < REFUSED_MS + SILENT_MS ? ["slow", `Not live, read each ${REFUSED_MS / 1000} s`]
        : (live.stream || every) && silence < LATE_MS + 1000 * (every || 0) ? ["on", "Live"] : ["away", `Not live, last heard ${seconds} s ago`];
  mark.hidden = false;
  mark.dataset.state = state;
  if (mark.textContent !== words) mark.lastChild.textContent = words;
  band(state === "away" && silence >= SILENT_MS);
}

function band(shown) {
  const there = $(".stale");
  if (!shown) { there?.remove(); return; }
  if (there) return;
  const words = `The API has not answered since ${clock(live.at)}. What you see is from then.`;
  const made_ = made("p", { className: "band trouble stale", textContent: words });
  made_.setAttribute("role", "status");
  $("main").prepend(made_);
}

function toggleLive() {
  live.stopped = !live.stopped;
  if (live.stopped) closeLive(); else { openLive(); refresh(); }
  indicate();
}

function onVisibility() {
  if (document.hidden) {
    live.timer = setTimeout(() => { live.hiding = 1; closeLive(); }, HIDDEN_MS);
    return;
  }
  clearTimeout(live.timer);
  if (!live.hiding && (live.stream || !$("main").dataset.live)) return;
  live.hiding = 0;
  openLive();
  refresh();
}

// Dialogs: pages of their own, opened in place.

function openDialog(section, opener) {
  const dialog = made("dialog", {}, document.importNode(section, true));
  dialog.addEventListener("close", () => { dialog.remove(); if (opener?.isConnected && opener !== document.body) opener.focus(); });
  document.body.append(dialog);
  dialog.showModal();
  fill(dialog);
  return dialog;
}

// The focus is never on what Enter could not undo.
function fill(dialog) {
  dialog.setAttribute("aria-label", $("h1", dialog)?.textContent || "Dialog");
  reveal();
  const field = $("button.danger", dialog) ? null : $("label:not([hidden], details:not([open]) *) :is(input, select, textarea)", dialog);
  (field || $(".buttons a", dialog) || $("button", dialog))?.focus();
}

async function openLinked(address, opener) {
  try {
    const found = await page(address);
    const section = $(".dialog", found.body);
    if (found.answer.status >= 500) throw found.answer.status;
    if (!section || !found.answer.ok) { location.assign(address); return; }
    const form = $("form", section);
    restore(openDialog(section, opener));
    form?.setAttribute("action", form.getAttribute("action") || address);
  } catch { toast("The API has not answered. Nothing was changed; try again."); }
}

let signingIn = false;

async function signInAgain() {
  if (signingIn) return;
  signingIn = true;
  const found = await page(location.href).catch(() => null);
  const section = found && isSignIn(found) && $(".sign", found.body);
  if (!section) { signingIn = false; return; }
  const dialog = openDialog(section, document.activeElement);
  dialog.classList.add("sign-in");
  $("h1", dialog).after(made("p", { textContent: "The key was revoked or has expired. Sign in with another; what you typed stays." }));
  dialog.addEventListener("close", () => { signingIn = false; });
  $("input[name=key]", dialog).focus();
}

async function sendSignIn(form) {
  const found = await page(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)) }).catch(() => null);
  if (!found) { say(form, "The API has not answered. Try again."); return; }
  if (isSignIn(found)) { say(form, $(".wrong", found.body)?.textContent || "The key was not accepted."); return; }
  const token = $("input[name=token]", found.body)?.value;
  form.closest("dialog").close();
  if (token) $$("input[name=token]").forEach((field) => { field.value = token; });
  openLive();
  refresh();
}

function say(form, words, button) {
  const line = $(".said", form) || made("p", { className: "said wrong" });
  line.setAttribute("role", "alert");
  line.textContent = words;
  const beside = button?.closest(".title, .buttons");
  if (beside?.matches(".title")) beside.after(line);
  else if (beside) beside.prepend(line);
  else form.append(line);
  line.scrollIntoView({ block: "nearest" });
}

// Forms: an answer that never came is repeated with the same request_id.

const SLOW_MS = 200;

async function send(form, submitter) {
  if (form.ariaBusy) return;
  const button = submitter || $("button", form), label = button.textContent;
  form.ariaBusy = button.disabled = true;
  const slow = setTimeout(() => { button.textContent = button.value === "save" ? "Saving…" : "Sending…"; }, SLOW_MS);
  const fields = new FormData(form);
  if (submitter?.name) fields.append(submitter.name, submitter.value);
  try {
    const found = await page(form.action, { method: "POST", body: new URLSearchParams(fields) });
    if (isSignIn(found)) { signInAgain(); return; }
    const { status } = found.answer;
    if (status >= 500 || status === 429 || !$("main", found.body)) throw new TypeError("no answer to the form");
    if (status === 413) { say(form, $("main .sentence", found.body).textContent, button); return; }
    if (found.answer.redirected) forget(form);
    show(found, form, submitter);
  } catch {
    const saves = button.name !== "do" || button.value === "save";
    say(form, saves ? "Not known whether it was saved. Trying again is safe." : "The API has not answered. Nothing was saved.", button);
  } finally {
    clearTimeout(slow);
    button.textContent = label;
    form.ariaBusy = null;
    button.disabled = false;
  }
}

function show(found, form, submitter) {
  const dialog = form.closest("dialog");
  const section = $(".dialog", found.body);
  const answered = !found.answer.redirected;
  if (dialog && section && answered) {
    dialog.replaceChildren(document.importNode(section, true));
    carry(form, $("form", dialog));
    fill(dialog);
    $("[aria-invalid]", dialog)?.focus();
    return;
  }
  dialog?.close();
  closeLive();
  clearTimeout(live.waking);
  clearTimeout(live.refused);
  live.refused = 0;
  if (!answered && found.answer.url !== location.href) history.pushState({}, "", found.answer.url);
  document.title = found.body.title;
  document.body.replaceWith(document.importNode(found.body.body, true));
  begin(answered);
  document.dispatchEvent(new Event("swapped"));
  if (!answered) { $(`form[action="${form.getAttribute("action")}"] button`)?.focus(); return; }
  carry(form, $(".spec, .dialog form"));
  const again = submitter?.name && $(`main button[name="${submitter.name}"][value="${submitter.value}"]`);
  ($("main [data-answer]") || $("main [aria-invalid]") || again)?.focus();
}

// Drafts: what was typed is kept until it is saved or thrown away, by the version that it was typed on. A draft has only
// the fields that differ from the page as served, and goes only into a page that was read, never into an answer to a form.

const draftOf = (form) => `draft:${new URL(form.action).pathname}${new URL(form.action).search}`;
const baseOf = (form) => $("[name=base]", form)?.value || "";
const isPicked = (field) => field.type === "checkbox" || field.type === "radio";
const kept = (form) => [...form.elements].filter((field) => field.name && !["hidden", "password", "submit", "file"].includes(field.type));
const idOf = (field) => isPicked(field) ? `${field.name}=${field.value}` : field.name;
const valueOf = (field) => isPicked(field) ? field.checked : field.value;

function servedOf(field) {
  if (isPicked(field)) return field.defaultChecked;
  if (!field.options) return field.defaultValue;
  return ([...field.options].find((option) => option.defaultSelected) || field.options[0])?.value;
}

function put(field, value) {
  if (isPicked(field)) field.checked = value; else field.value = value;
}

const draftsOf = (form) => JSON.parse(sessionStorage.getItem(draftOf(form)) || "{}");

function store(form, drafts) {
  if (!Object.keys(drafts).length) return sessionStorage.removeItem(draftOf(form));
  try {
    sessionStorage.setItem(draftOf(form), JSON.stringify(drafts));
  } catch { /* too long: the last one that fits is kept */ }
}

function keep(form) {
  if (!$("[name=request_id]", form)) return;
  const drafts = draftsOf(form), base = baseOf(form);
  const fields = drafts[base]?.fields || {};
  for (const field of kept(form)) {
    const id = idOf(field), value = valueOf(field);
    const served = id in fields ? fields[id][1] : servedOf(field);
    if (value === served) delete fields[id]; else fields[id] = [value, served];
  }
  delete drafts[base];
  if (Object.keys(fields).length) drafts[base] = { at: Date.now(), fields };
  store(form, drafts);
}

function forget(form, base = baseOf(form)) {
  const drafts = draftsOf(form);
  delete drafts[base];
  store(form, drafts);
}

// An answer to a form has what was typed, perhaps on top of a later version: its draft is from now on that of the answer.
function carry(form, answer) {
  const drafts = draftsOf(form), mine = drafts[baseOf(form)];
  if (!answer || !mine) return;
  delete drafts[baseOf(form)];
  drafts[baseOf(answer)] = mine;
  store(form, drafts);
  keep(answer);
}

function restore(within) {
  for (const form of $$("form", within)) {
    if (!$("[name=request_id]", form)) continue;
    const base = baseOf(form);
    for (const [typedOn, draft] of Object.entries(draftsOf(form))) {
      const found = kept(form).filter((field) => idOf(field) in draft.fields);
      if (found.length && base && typedOn === base) apply(form, draft, found);
      else if (found.length) offer(form, draft, found, typedOn, base);
    }
  }
}

function apply(form, draft, found, words = "") {
  for (const field of found) put(field, draft.fields[idOf(field)][0]);
  note(form, `Restored what you typed at ${clock(new Date(draft.at)).slice(0, 5)}.${words}`, ["Discard", () => { forget(form); form.reset(); }]);
}

function offer(form, draft, found, typedOn, base) {
  const meets = found.filter((field) => {
    const [typed, served] = draft.fields[idOf(field)];
    return valueOf(field) !== served && valueOf(field) !== typed;
  });
  const both = meets.length && base ? ` Both of you changed: ${[...new Set(meets.map((field) => field.name))].join(", ")}.` : "";
  const words = base ? `You typed changes to version ${typedOn}; version ${base} is now in force.${both}` : `You typed something here at ${clock(new Date(draft.at)).slice(0, 5)}.`;
  const take = () => { apply(form, draft, found, both); forget(form, typedOn); keep(form); };
  note(form, words, ["Restore", take], ["Discard", () => forget(form, typedOn)]);
}

function note(form, words, ...choices) {
  const line = made("p", { className: "draft caption" }, `${words} `);
  line.setAttribute("role", "status");
  for (const [label, act] of choices) {
    const button = made("button", { type: "button", className: "plain", textContent: label });
    button.onclick = () => { line.remove(); act(); };
    line.append(button, " ");
  }
  const title = $(":scope > .title", form);
  if (title) title.after(line); else form.prepend(line);
}

function forgetAll() {
  Object.keys(sessionStorage).filter((name) => name.startsWith("draft:")).forEach((name) => sessionStorage.removeItem(name));
}

// Times: z shows every instant whole.

function absoluteTimes() {
  if (!root.dataset.absolute) return;
  for (const time of $$("time[data-as=rel]")) {
    if (!time.title || time.textContent === time.title.split(",")[0]) continue;
    time.dataset.relative = time.textContent;
    time.textContent = time.title.split(",")[0];
  }
}

function toggleTimes() {
  root.dataset.absolute = root.dataset.absolute ? "" : "1";
  if (root.dataset.absolute) { absoluteTimes(); return; }
  $$("time[data-relative]").forEach((time) => { time.textContent = time.dataset.relative; delete time.dataset.relative; });
}

function offerZone() {
  const button = $("#browser-zone");
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (!button || !zone) return;
  button.value = button.textContent = zone;
  button.hidden = false;
}

// Copy, with the way for pages that came by plain HTTP.

async function copy(text, from) {
  try { await navigator.clipboard.writeText(text); } catch {
    const field = made("textarea", { value: text });
    (from?.closest("dialog") || document.body).append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  toast("Copied.");
}

function toast(words) {
  $(".toast.own")?.remove();
  const note = made("div", { className: "toast own", textContent: words });
  note.setAttribute("role", "status");
  document.body.append(note);
  fade(note);
}

const TOAST_MS = 8000;
function fade(note) {
  setTimeout(() => note.matches(":hover, :focus-within") ? fade(note) : note.remove(), TOAST_MS);
}

// Search: suggestions while typing, if the server has them; Enter always goes to the page.

const ask = { timer: 0, at: -1 };

function suggest(field) {
  clearTimeout(ask.timer);
  ask.timer = setTimeout(async () => {
    const address = new URL(field.form.action);
    const asked = field.value;
    address.search = new URLSearchParams([...new FormData(field.form), ["format", "json"]]);
    if (!asked.trim()) { closeList(); return; }
    try {
      const answer = await fetch(address, { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(3000) });
      const found = answer.ok && answer.headers.get("content-type").includes("json") ? await answer.json() : {};
      if (field.value === asked) list(field, found.suggestions || []);
    } catch { closeList(); }
  }, 120);
}

function list(field, found) {
  closeList();
  if (!found.length || document.activeElement !== field) return;
  const options = found.slice(0, 8).filter((each) => /^\/(?!\/)/.test(each.href || "")).map((each, at) => {
    const link = made("a", { href: each.href, id: `ask-${at}`, tabIndex: -1 }, made("bdi", { textContent: each.words }));
    link.setAttribute("role", "option");
    return link;
  });
  const box = made("div", { id: "ask-list" }, ...options);
  box.setAttribute("role", "listbox");
  box.setAttribute("aria-label", "Suggestions");
  field.form.append(box);
  field.setAttribute("aria-expanded", "true");
}

function closeList() {
  ask.at = -1;
  $("#ask-list")?.remove();
  const field = $(".ask input[name=q]");
  field?.setAttribute("aria-expanded", "false");
  field?.removeAttribute("aria-activedescendant");
}

function askKey(event, field) {
  const options = $$("#ask-list a");
  if (event.key === "Escape") { closeList(); return; }
  if (event.key === "Enter" && options[ask.at]) { event.preventDefault(); location.assign(options[ask.at].href); }
  if (!options.length || !["ArrowDown", "ArrowUp"].includes(event.key)) return;
  event.preventDefault();
  ask.at = (ask.at + (event.key === "ArrowDown" ? 1 : -1) + options.length) % options.length;
  options.forEach((option, at) => option.setAttribute("aria-selected", at === ask.at));
  field.setAttribute("aria-activedescendant", options[ask.at].id);
}

// Keys.

const isTyping = (target) => target.isContentEditable || target.matches?.("input, textarea, select");
const PLACES = { o: "overview", j: "jobs", r: "runs", d: "dead_letters", b: "bulk", f: "fleet" };
let afterG = -Infinity;

function choose(name, value) {
  const form = $("#looks");
  const button = made("button", { name, value, hidden: true });
  form.append(button);
  form.requestSubmit(button);
}

function moveRow(by) {
  const links = $$("main tbody tr").map((row) => $("a", row)).filter(Boolean);
  const at = links.indexOf(document.activeElement);
  links[Math.min(Math.max(at + by, 0), links.length - 1)]?.focus();
}

const follow = (selector) => { const link = $(selector); if (link) link.click(); };

const KEYS = {
  "/": () => $(".ask input")?.focus(),
  "?": () => { const help = $("#keys"); if (help) openDialog(help.content.firstElementChild, document.activeElement); },
  g: () => { afterG = performance.now(); },
  j: () => moveRow(1),
  k: () => moveRow(-1),
  "[": () => follow("a[rel=prev]"),
  "]": () => follow("a[rel=next]"),
  z: toggleTimes,
  d: () => choose("density", root.dataset.density === "compact" ? "wide" : "compact"),
  t: () => choose("theme", { light: "dark", dark: "auto" }[root.dataset.theme] || "light"),
  p: toggleLive,
  c: () => { const id = $(":not(.command) > [data-copy]"); if (id) copy(id.dataset.copy, id); },
  e: () => follow("a[data-edit]"),
  x: () => $(".choice input", document.activeElement.closest("tr") || document.head)?.click(),
  "-": () => follow(".zooms [aria-label='Zoom out']"),
  "=": () => follow(".zooms [aria-label='Zoom in']"),
  ".": () => $("main .actions :is(a, summary, button)")?.focus(),
};

function closeMenus(within) {
  for (const menu of $$("details[name=top][open]")) if (!menu.contains(within)) menu.open = false;
}

function onKey(event) {
  const target = event.target;
  if (event.key === "Escape") closeMenus(null);
  if (target.matches?.(".ask input")) askKey(event, target);
  if ((event.ctrlKey || event.metaKey) && event.key === "k") { event.preventDefault(); $(".ask input")?.focus(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(target) || $("dialog[open]")) return;
  if (root.dataset.keys === "off") return;
  if (performance.now() - afterG < 1500 && PLACES[event.key]) {
    afterG = -Infinity;
    follow(`.rail a[data-place=${PLACES[event.key]}]`);
    return;
  }
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

// A drag of the mouse over a time axis opens the time between its ends.

const DRAG_PX = 8, LEAST_MS = 120000;
let drag = null;

function beginDrag(event) {
  const axis = event.button === 0 && event.pointerType === "mouse" && event.target.closest("figure[data-from] > svg");
  drag = axis ? { figure: axis.parentElement, box: axis.getBoundingClientRect(), from: event.clientX, band: null } : null;
}

function moveDrag(event) {
  if (!drag || (!drag.band && Math.abs(event.clientX - drag.from) < DRAG_PX)) return;
  if (!drag.band) drag.figure.append(drag.band = made("div", { className: "dragged" }));
  const ends = [drag.from, event.clientX].map((x) => Math.min(Math.max(x - drag.box.left, 0), drag.box.width));
  drag.begin = Math.min(...ends) / drag.box.width;
  drag.end = Math.max(...ends) / drag.box.width;
  drag.band.style.height = `${drag.box.height}px`;
  drag.band.style.left = `${drag.begin * 100}%`;
  drag.band.style.width = `${(drag.end - drag.begin) * 100}%`;
}

function endDrag(event) {
  if (!drag?.band) { drag = null; return; }
  const [from, to] = [drag.figure.dataset.from, drag.figure.dataset.to].map((at) => Date.parse(at));
  const middle = from + (to - from) * (drag.begin + drag.end) / 2;
  const half = Math.max((to - from) * (drag.end - drag.begin), LEAST_MS) / 2;
  drag.band.remove();
  drag = null;
  if (event.type !== "pointerup") return;
  const address = new URL(location.href);
  address.searchParams.delete("window");
  for (const [name, at] of [["from", middle - half], ["to", middle + half]]) address.searchParams.set(name, `${new Date(at).toISOString().slice(0, 19)}Z`);
  document.addEventListener("click", (click) => click.preventDefault(), { capture: true, once: true });
  location.assign(address);
}

// A label that ends in "…" leads to a dialog, as in menus of all programs.
const isDialogLink = (link) => link.matches("a[data-dialog]") || (link.matches("a.button, .actions a") && link.textContent.trim().endsWith("…"));
// While the API is away a link is read first: the page and what it shows stay if no answer comes.
const isElsewhere = (link) => link.origin === location.origin && link.pathname + link.search !== location.pathname + location.search;
const keepsPage = (link) => link.matches("a[href]") && isElsewhere(link) && $("#live")?.dataset.state === "away";

function onClick(event) {
  closeMenus(event.target);
  const link = event.target.closest("a, button, tr");
  const plain = !event.defaultPrevented && event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey;
  if (!link || !plain) return;
  if (link.matches("form .buttons a:not(.primary)")) forget(link.closest("form"));
  if (link.matches("[data-copy]")) { event.preventDefault(); copy(link.dataset.copy, link); }
  else if (isDialogLink(link)) { event.preventDefault(); openLinked(link.href, link); }
  else if (link.matches("#live")) toggleLive();
  else if (link.matches("#show-keys")) KEYS["?"]();
  else if (link.matches("dialog .buttons a:not(.primary), dialog button.close")) { event.preventDefault(); link.closest("dialog").close(); }
  else if (keepsPage(link)) { event.preventDefault(); openLinked(link.href, link); }
}

function onSubmit(event) {
  const form = event.target;
  if (form.matches("[data-sign-out]")) forgetAll();
  if (form.matches("[data-dialog]")) {
    event.preventDefault();
    const address = new URL(form.action);
    address.search = new URLSearchParams(new FormData(form));
    openLinked(address.href, event.submitter);
    return;
  }
  if (form.matches("dialog [data-sign-in]")) { event.preventDefault(); sendSignIn(form); return; }
  if (form.method !== "post" || !$("[name=request_id]", form)) return;
  event.preventDefault();
  send(form, event.submitter);
}

let shownAddress = "";

function begin(answered = false) {
  shownAddress = location.pathname + location.search;
  offerZone();
  root.dataset.script = "1";
  reveal();
  $$(".toast").forEach((note) => { document.body.append(note); fade(note); }); // outside of what is swapped
  if (!answered) restore(document);
  absoluteTimes();
  for (const tab of $$(".tabs [aria-current]")) tab.closest(".tabs").scrollLeft = tab.offsetLeft - 48; // on a phone
  const field = $(".ask input[name=q]");
  if (field) for (const [name, value] of [["role", "combobox"], ["aria-expanded", "false"], ["aria-controls", "ask-list"], ["aria-autocomplete", "list"]]) field.setAttribute(name, value);
  live.at = new Date();
  live.heard = performance.now();
  live.hiding = document.hidden ? 1 : 0;
  openLive();
  indicate();
  clearInterval(live.timed);
  const every = Number($("main").dataset.every);
  if (every) live.timed = setInterval(() => { if (!document.hidden) refresh(); }, every * 1000);
}

document.addEventListener("keydown", onKey);
document.addEventListener("click", onClick);
document.addEventListener("submit", onSubmit);
document.addEventListener("pointerdown", beginDrag);
document.addEventListener("pointermove", moveDrag);
for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, endDrag);
document.addEventListener("dragstart", (event) => { if (drag) event.preventDefault(); });
document.addEventListener("input", (event) => {
  if (event.target.matches(".ask input")) suggest(event.target);
  else if (event.target.form?.method === "post") keep(event.target.form);
});
document.addEventListener("change", async (event) => {
  if (event.target.matches("[data-all]")) $$("tbody .choice input", event.target.form).forEach((box) => { box.checked = event.target.checked; });
  const into = event.target.dataset.into && event.target.form.elements[event.target.dataset.into];
  if (into && event.target.files[0]) { into.value = await event.target.files[0].text(); keep(into.form); }
});
document.addEventListener("focusout", (event) => { if (event.target.matches(".ask input")) setTimeout(closeList, 200); });
document.addEventListener("visibilitychange", onVisibility);
addEventListener("beforeprint", () => $$("details.trace").forEach((trace) => { trace.open = true; }));
addEventListener("popstate", () => { if (location.pathname + location.search !== shownAddress) location.reload(); }); // not for a fragment
addEventListener("pagehide", closeLive);
addEventListener("pageshow", (event) => { if (event.persisted) { openLive(); refresh(); } });
setInterval(indicate, 1000);
begin();
