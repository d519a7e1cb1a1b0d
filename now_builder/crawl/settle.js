// Wait until the page is at rest: fonts, pictures on the screen, a DOM that no longer changes.
async (limits) => {
  const begun = performance.now();
  let changed = begun;
  const observer = new MutationObserver(() => { changed = performance.now(); });
  observer.observe(document, { subtree: true, childList: true, characterData: true });
  const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
  const loading = () => [...document.images].some((picture) => {
    if (picture.complete) return false;
    const box = picture.getBoundingClientRect();
    return box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth
      && getComputedStyle(picture).display !== "none";
  });
  let settled = false;
  while (!settled && performance.now() - begun < limits.milliseconds) {
    await pause(25);
    settled = performance.now() - changed >= limits.quiet && document.fonts.status === "loaded"
      && document.readyState !== "loading" && !loading();
  }
  observer.disconnect();
  return settled;
}
