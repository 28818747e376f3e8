// The strips of jobs: one box names the runs of the cell under the pointer or the keyboard; a click or Enter opens them.
// Without script, the sentence of a strip and the link of its row remain.
"use strict";
const RUNS = { g: "succeeded", b: "failed", a: "waiting", m: "running", t: "retrying", k: "skipped", u: "cancelled" };
const cellMark = made("div", { className: "cell", hidden: true }), cellWords = made("div", { className: "cell-words", hidden: true });
const STRIP = "tr[data-job] svg.strip:not([data-cells=''])";
let cellColumn; // of the keyboard, from row to row
cellWords.setAttribute("role", "status");
document.body.append(cellMark, cellWords);

const strips = () => $$(STRIP);
const stripAt = (target) => target?.closest?.(STRIP);
const cellsOf = (strip) => strip.dataset.cells.split(" ").flatMap((each) => {
  const [text, times] = each.split("*");
  return Array(Number(times || 1)).fill(text);
});
const columnAt = (strip, x) => Math.floor((x - strip.getBoundingClientRect().left) / (strip.getBoundingClientRect().width / cellsOf(strip).length));

const spanOf = (strip, at) => strip.closest("table").dataset.edges.split(" ").slice(at, at + 2).map((each) => Number(each) * 1000);

function wordsOf(strip, at) {
  const found = [...cellsOf(strip)[at].matchAll(/([a-z])(\d+)/g)], [begin, end] = spanOf(strip, at);
  const day = end - begin < 1800000 ? {} : { weekday: "short" };
  const time = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: document.body.dataset.zone, ...day });
  const isAhead = at >= strip.closest("table").dataset.behind;
  const runs = found.map(([, letter, many]) => letter === "d" ? isAhead ? "upcoming" : `${many} scheduled` : `${Number(many).toLocaleString("en")} ${RUNS[letter]}`);
  return `${time.format(begin)} · ${runs.join(", ") || "no run"}`;
}

// A narrow page shows only the newest part of a strip.
function showCell(strip, at) {
  const box = strip.getBoundingClientRect(), width = box.width / cellsOf(strip).length;
  const first = Math.ceil((strip.parentElement.getBoundingClientRect().left - box.left) / width);
  cellColumn = Math.min(Math.max(at, first, 0), Math.round(box.width / width) - 1);
  cellMark.hidden = cellWords.hidden = false;
  cellWords.textContent = wordsOf(strip, cellColumn);
  const left = box.left + cellColumn * width;
  for (const [name, value] of [["left", left], ["top", box.top], ["width", width], ["height", box.height]]) cellMark.style[name] = `${value}px`;
  cellWords.style.left = `${Math.max(Math.min(left, innerWidth - cellWords.offsetWidth - 8), 8)}px`;
  cellWords.style.top = `${box.bottom + 2}px`;
}

function hideCell() { cellMark.hidden = cellWords.hidden = true; }

function openCell(strip, at) {
  const text = cellsOf(strip)[at], row = strip.closest("tr"), job = new URL($("td.identity a", row).href);
  if (!text || text === "-") return;
  if (text === "d1" && at >= strip.closest("table").dataset.behind) {
    job.pathname += "/next";
    location.assign(job);
    return;
  }
  const runs = new URL(strip.closest("table").dataset.runs, location.href), [since, until] = spanOf(strip, at);
  const times = [new Date(since), new Date(until - 1)].map((each) => each.toISOString());
  for (const [name, value] of [["job", row.dataset.job], ["since", times[0]], ["until", times[1]]]) runs.searchParams.set(name, value);
  location.assign(runs);
}

// One stop of the tab key for all rows.
function setStop(at = strips()[0]) {
  for (const each of strips()) each.setAttribute("tabindex", each === at ? 0 : -1);
}

function onCellKey(event) {
  const strip = stripAt(event.target), move = { ArrowLeft: -1, ArrowRight: 1 }[event.key], other = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!strip) return;
  if (event.key === "Escape") hideCell();
  if (event.key === "Enter") openCell(strip, cellColumn);
  if (move) showCell(strip, cellColumn + move);
  if (other) strips()[strips().indexOf(strip) + other]?.focus();
  if (move || other) event.preventDefault();
}

document.addEventListener("keydown", onCellKey);
document.addEventListener("focusin", (event) => {
  const strip = stripAt(event.target);
  if (strip) { setStop(strip); showCell(strip, cellColumn ?? strip.closest("table").dataset.behind - 1); } else hideCell();
});
document.addEventListener("pointermove", (event) => {
  const strip = event.pointerType === "mouse" && stripAt(event.target);
  if (strip) showCell(strip, columnAt(strip, event.clientX)); else if (!stripAt(document.activeElement)) hideCell();
});
document.addEventListener("click", (event) => {
  const strip = stripAt(event.target);
  if (!strip || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (event.pointerType === "touch") $("td.identity a", strip.closest("tr")).click(); else openCell(strip, columnAt(strip, event.clientX));
});
document.addEventListener("swapped", () => setStop(stripAt(document.activeElement) || undefined));
document.addEventListener("scroll", () => {
  const strip = stripAt(document.activeElement);
  if (strip) showCell(strip, cellColumn); else hideCell();
}, { capture: true, passive: true });
setStop();
