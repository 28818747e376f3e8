// Show what saving a job does while its form is typed. The server checks the form, as for the button "Check".
"use strict";
const TYPED_MS = 500;
const preview = { timer: 0, sent: null };

function cease() {
  clearTimeout(preview.timer);
  preview.sent?.abort();
}

async function check(form) {
  preview.sent = new AbortController();
  const fields = new FormData(form);
  fields.set("do", "check");
  try {
    const answer = await fetch(form.action, { method: "POST", body: new URLSearchParams(fields), signal: preview.sent.signal });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const [shown, fresh, errors] = [form.querySelector("#check"), page.querySelector("#check"), page.querySelector("[data-answer] ul")];
    if (fresh === null) return;
    if (errors !== null) fresh.replaceChildren(fresh.querySelector("h2"), errors);
    shown?.replaceWith(fresh);
    settle();
  } catch { /* the next letter, or the button, sends the form again */ }
}

const isTyped = (field) => field.defaultValue !== undefined && (field.value !== field.defaultValue || field.checked !== field.defaultChecked);

function settle() { // nothing typed is nothing to save; but a draft may be taken back
  for (const save of document.querySelectorAll("#spec [value=save]")) {
    const isSame = save.form.querySelector("#check [data-unchanged]") !== null;
    save.disabled = isSame && save.form.querySelector(".draft") === null && ![...save.form.elements].some(isTyped);
  }
}

settle();
document.addEventListener("swapped", settle);
document.addEventListener("input", (event) => {
  const form = event.target.closest("#spec");
  if (form === null) return;
  cease();
  form.querySelector("[value=save]").disabled = false;
  preview.timer = setTimeout(() => check(form), TYPED_MS);
});
document.addEventListener("submit", cease);
