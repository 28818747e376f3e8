// Refresh the overview each 5 seconds while its page is visible and nothing in it is in use. All else works without script.
"use strict";
const SECONDS = 5;

async function refresh() {
  const part = document.querySelector("[data-refresh]");
  const inUse = part === null || document.hidden || part.contains(document.activeElement) || part.matches(":active")
    || !document.getSelection().isCollapsed;
  if (inUse) return;
  try {
    const answer = await fetch(part.dataset.refresh, { signal: AbortSignal.timeout(10000), cache: "no-store" });
    if (answer.redirected) { location.assign(answer.url); return; }
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const made = page.querySelector("[data-refresh]");
    if (made === null) return;
    part.replaceWith(document.adoptNode(made));
    document.title = page.title;
    document.querySelector("footer").replaceWith(document.adoptNode(page.querySelector("footer")));
  } catch { /* the next round tries again; the footer names the time of what is shown */ }
}

setInterval(refresh, SECONDS * 1000);
