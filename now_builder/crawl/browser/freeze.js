// Stop what moves, so that the same page gives the same picture.
async () => {
  for (const animation of document.getAnimations()) {
    try {
      const timing = animation.effect && animation.effect.getComputedTiming();
      if (timing && Number.isFinite(timing.endTime)) animation.finish();
      else animation.cancel();
    } catch { /* an animation of a kind that cannot end */ }
  }
  for (const player of document.querySelectorAll("video, audio")) player.pause();
  if (document.activeElement && document.activeElement !== document.body
    && document.activeElement.blur) document.activeElement.blur();
  window.scrollTo({ left: 0, top: 0, behavior: "instant" });
  const frame = () => new Promise((resolve) => {
    requestAnimationFrame(resolve);
    setTimeout(resolve, 100);
  });
  await frame();
  await frame();
  return {
    url: location.href,
    contentType: document.contentType,
    metas: [...document.querySelectorAll("meta[name][content]")]
      .map((meta) => [meta.getAttribute("name"), meta.getAttribute("content")])
      .filter(([name]) => /^\s*(description|robots|tdm-reservation|noise-of-web)/i.test(name)),
  };
}
