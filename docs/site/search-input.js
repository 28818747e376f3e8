// The theme searches at the end of a keystroke. Text that is pasted, dictated or filled in by a browser comes without one.
document.addEventListener("input", ({ target }) => {
  if (target.matches(".md-search__input")) target.dispatchEvent(new Event("keyup"));
});
