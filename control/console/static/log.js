// Append what a running attempt writes while the end of its log is in view. Without script, a reload shows it.
// A shift-click on a number picks the lines from the one that was picked before: `#a1-L10-L20`.
"use strict";
const LOG_SECONDS = 1, LOG_LINES = 5000;

function followLog(lines) {
  const state = document.querySelector("[data-log-state]");
  const atEnd = () => lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40;
  const waiting = [];
  let more = lines.dataset.more, unseen = 0;

  function show(words) { if (state !== null && state.textContent !== words) state.textContent = words; }

  function append() {
    for (const each of waiting.splice(0)) {
      lines.querySelectorAll(".line.open").forEach((line) => line.remove());
      lines.append(...each.childNodes);
    }
    while (lines.childElementCount > LOG_LINES) lines.firstElementChild.remove();
    unseen = 0;
  }

  async function look() {
    if (more === undefined || !lines.isConnected) return;
    if (!document.hidden) {
      try {
        const answer = await fetch(more, { signal: AbortSignal.timeout(10000), cache: "no-store", headers: { "Tidewheel-Part": "1" } });
        if (answer.redirected) signInAgain();
        else if (answer.ok) {
          const page = new DOMParser().parseFromString(await answer.text(), "text/html");
          const made = document.adoptNode(page.querySelector(".lines"));
          more = made.dataset.more;
          const last = (waiting.at(-1) ?? lines).lastElementChild; // a line that grows is sent again
          const isNew = made.childElementCount > 1 || made.textContent !== (last?.matches(".open") ? last.textContent : "");
          if (isNew) { waiting.push(made); unseen += made.childElementCount; }
          const follows = atEnd() && document.getSelection().isCollapsed;
          if (follows) { append(); lines.scrollTop = lines.scrollHeight; }
          show(more === undefined ? "The attempt has ended. Reload this page to see its outcome."
            : follows ? "Follows while its end is in view." : `${unseen} new lines below: scroll to the end.`);
        }
      } catch { show("No answer. It tries again."); }
    }
    setTimeout(look, LOG_SECONDS * 1000);
  }

  lines.addEventListener("scroll", () => { if (waiting.length > 0 && atEnd()) append(); }, { passive: true });
  lines.scrollTop = lines.scrollHeight;
  look();
}

const PICKED = /^#?(a\d+)-L(\d+)(?:-L(\d+))?$/;

function pickLines() {
  const found = PICKED.exec(location.hash);
  const ends = found?.[3] ? [Number(found[2]), Number(found[3])] : [1, 0];
  for (const line of document.querySelectorAll(".lines > .line")) {
    const [, attempt, number] = PICKED.exec(line.id);
    line.classList.toggle("picked", attempt === found?.[1] && number >= Math.min(...ends) && number <= Math.max(...ends) && ends[1] > 0);
  }
}

function onLineClick(event) {
  const line = event.shiftKey && event.target.closest(".line > a")?.parentElement;
  const [first, last] = [PICKED.exec(location.hash), line && PICKED.exec(line.id)];
  if (!last || first?.[1] !== last[1]) return;
  event.preventDefault();
  const [from, to] = [Number(first[2]), Number(last[2])].sort((a, b) => a - b);
  location.hash = `${last[1]}-L${from}-L${to}`;
}

const followed = new WeakSet();

function followAll() {
  for (const lines of document.querySelectorAll(".lines[data-more]")) {
    if (!followed.has(lines)) { followed.add(lines); followLog(lines); }
  }
}

followAll();
document.addEventListener("click", onLineClick);
document.addEventListener("swapped", () => { followAll(); pickLines(); });
addEventListener("hashchange", pickLines);
pickLines();
document.querySelector(".line.picked")?.scrollIntoView({ block: "center" });
